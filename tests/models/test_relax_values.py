"""What is known of values of a symbolic extent, along which they are repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

from tvm_layout_ext.models.bindings import Bindings
from tvm_layout_ext.models.relax_values import array_of, scalar_of

BATCH = tirx.Var("n", "int64")


def whole(*values: Any) -> Any:
    return relax.const(np.array(values))


def rows(emit: Any) -> Any:
    """Numbers of one sequence, for each of any batch."""
    return emit(op.broadcast_to(whole(3, 1, 2), (BATCH, 3)))


def numbers(emit: Any) -> Any:
    """Those of all sequences, as a column."""
    return emit(op.expand_dims(emit(op.arange(0, BATCH, 1, "int64")), 1))


def known(build: Any) -> np.ndarray | None:
    """What is known of a value of any batch."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((BATCH, 3), "int64"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(builder.emit(build(builder.emit)))
        builder.emit_func_output(out)
    reader = Bindings.of(builder.get()["main"])
    value = reader.order[-1]
    assert array_of(value, reader.call) is None
    return array_of(value, reader.call, repeated=True)


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda emit: op.add(rows(emit), whole(1)), [[4, 2, 3]]),
        (lambda emit: op.strided_slice(rows(emit), [-1], [1], [3]), [[1, 2]]),
        (lambda emit: op.concat([rows(emit), rows(emit)], 1), [[3, 1, 2, 3, 1, 2]]),
        (lambda emit: op.cumsum(rows(emit), 1), [[3, 4, 6]]),
        (lambda emit: op.permute_dims(rows(emit), [1, 0]), [[3], [1], [2]]),
        (lambda emit: op.reshape(rows(emit), (BATCH, 1, 3, 1)), [[[[3], [1], [2]]]]),
        # Any sequence is as good as another.
        (lambda emit: op.index_tensor(rows(emit), [numbers(emit), whole(2, 0)]), [[2, 3]]),
        (lambda emit: op.index_tensor(rows(emit), [whole(2, 5), whole(0, 1)]), [3, 1]),
        (lambda emit: op.arange(0, BATCH, 1, "int64"), None),
        (lambda emit: op.cumsum(rows(emit), 0), None),
        (lambda emit: op.concat([rows(emit), rows(emit)], 0), None),
        # Two sequences, one behind the other, are read across.
        (
            lambda emit: op.reshape(
                emit(op.broadcast_to(relax.const(np.array([[1], [0]])), (2, BATCH))), (BATCH, 2)
            ),
            None,
        ),
    ],
)  # fmt: skip
def test_arrays_along_any_extent(build: Any, want: Any) -> None:
    found = known(build)
    if want is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, want)


def test_what_depends_on_an_input_has_any_number_of_operators_behind_it() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out: Any = x
            for _ in range(1200):
                out = builder.emit(op.add(out, out))
            out = builder.emit_output(out)
        builder.emit_func_output(out)
    reader = Bindings.of(builder.get()["main"])
    assert array_of(reader.order[-1], reader.call) is None
    assert scalar_of(reader.order[-1], reader.call) is None
