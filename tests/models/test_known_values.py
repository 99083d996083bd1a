"""What is known of values of a symbolic extent, along which they are repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.bindings import Bindings
from tvm_layout_ext.models.known_values import array_of, scalar_of

BATCH = tirx.Var("n", "int64")


def whole(*values: Any) -> Any:
    return relax.const(np.array(values))


def rows() -> Any:
    """Numbers of one sequence, for each of any batch."""
    return op.broadcast_to(whole(3, 1, 2), (BATCH, 3))


def numbers() -> Any:
    """Those of all sequences, as a column."""
    return op.expand_dims(op.arange(0, BATCH, 1, "int64"), 1)


def known(build: Any) -> np.ndarray | None:
    """What is known of a value of any batch."""
    reader = Bindings.of(relax_module(lambda _: build(), ((BATCH, 3), "int64"))["main"])
    value = reader.order[-1]
    assert array_of(value, reader.call) is None
    return array_of(value, reader.call, repeated=True)


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda: op.add(rows(), whole(1)), [[4, 2, 3]]),
        (lambda: op.strided_slice(rows(), [-1], [1], [3]), [[1, 2]]),
        (lambda: op.concat([rows(), rows()], 1), [[3, 1, 2, 3, 1, 2]]),
        (lambda: op.cumsum(rows(), 1), [[3, 4, 6]]),
        (lambda: op.permute_dims(rows(), [1, 0]), [[3], [1], [2]]),
        (lambda: op.reshape(rows(), (BATCH, 1, 3, 1)), [[[[3], [1], [2]]]]),
        # Any sequence is as good as another.
        (lambda: op.index_tensor(rows(), [numbers(), whole(2, 0)]), [[2, 3]]),
        (lambda: op.index_tensor(rows(), [whole(2, 5), whole(0, 1)]), [3, 1]),
        (lambda: op.greater_equal(numbers(), whole(0)), [[True]]),
        (lambda: op.greater_equal(op.expand_dims(numbers(), 0), whole(-2)), [[[True]]]),
        (lambda: op.greater_equal(numbers(), whole(1)), None),
        (lambda: op.greater_equal(op.arange(0, BATCH, -1, "int64"), whole(0)), None),
        (lambda: op.arange(0, BATCH, 1, "int64"), None),
        (lambda: op.cumsum(rows(), 0), None),
        (lambda: op.concat([rows(), rows()], 0), None),
        # Two sequences, one behind the other, are read across.
        (lambda: op.reshape(op.broadcast_to(whole([1], [0]), (2, BATCH)), (BATCH, 2)), None),
    ],
)
def test_arrays_along_any_extent(build: Any, want: Any) -> None:
    found = known(build)
    if want is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, want)


def test_what_depends_on_an_input_has_any_number_of_operators_behind_it() -> None:
    def build(x: Any) -> Any:
        for _ in range(1200):
            x = emit(op.add(x, x))
        return x

    reader = Bindings.of(relax_module(build, ((), "float32"))["main"])
    assert array_of(reader.order[-1], reader.call) is None
    assert scalar_of(reader.order[-1], reader.call) is None


def test_what_two_operators_read_is_worked_out_once() -> None:
    """The state of a mask that slices are put into was worked out for each of two readers, 2^n."""

    def doubled() -> Any:
        value = emit(rows())
        for _ in range(60):
            value = emit(op.subtract(op.add(value, value), value))
        return value

    np.testing.assert_equal(known(doubled), [[3, 1, 2]])


def test_what_was_too_deep_is_worked_out_from_nearer() -> None:
    """Between calls a value is kept with the number of operators that were followed to it."""

    def counted() -> Any:
        value = emit(op.add(whole(3), whole(0)))
        for _ in range(200):
            value = emit(op.add(value, whole(1)))
        return value

    reader = Bindings.of(relax_module(lambda _: counted(), ((BATCH, 3), "int64"))["main"])
    asked, kept = list[Any](), dict[Any, Any]()

    def binding(var: Any) -> Any:
        asked.append(var)
        return reader.call(var)

    assert array_of(reader.order[200], binding, kept=kept) is None
    np.testing.assert_equal(array_of(reader.order[100], binding, kept=kept), [103])
    before = len(asked)
    np.testing.assert_equal(array_of(reader.order[101], binding, kept=kept), [104])
    assert len(asked) - before < 10


@pytest.mark.parametrize(
    "build",
    [
        lambda: op.less(whole(3, 1, 2), BATCH),
        lambda: op.add(op.astype(whole(3, 1, 2), "int64"), BATCH),
        lambda: op.take(whole(3, 1, 2), BATCH - 1, 0),
        lambda: op.index_tensor(whole(3, 1, 2), [whole(-4)]),
        lambda: op.index_tensor(whole(3, 1, 2), [whole(3)]),
    ],
)
def test_what_sizes_are_part_of_is_not_known(build: Any) -> None:
    assert known(build) is None
