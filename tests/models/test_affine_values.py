"""Whole numbers that are counted along dims of any size, compared with NumPy's of known ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm.relax import op

from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.affine_values import AffineReader, AffineValue
from tvm_layout_ext.models.bindings import Bindings
from tvm_layout_ext.models.known_values import array_of

N = tirx.Var("n", "int64")
COMPARISONS = (op.less, op.less_equal, op.greater, op.greater_equal, op.equal, op.not_equal)
#: An operator by number, which two values before it it reads, and two small numbers.
STEPS = st.lists(st.tuples(*[st.integers(0, 63)] * 3, st.integers(0, 3), st.integers(0, 5)))


def whole(*numbers: int) -> Any:
    return relax.const(np.array(numbers), "int64")


def module(steps: list[Any], n: Any) -> tvm.IRModule:
    """Operators one behind the other, of vectors of ``n`` numbers and others."""

    def build(x: Any) -> Any:
        pool = [
            emit(op.arange(0, n, 1, "int64")),
            emit(op.subtract(whole(3), emit(op.arange(0, n, 1, "int64")))),
        ]
        pool += [emit(op.add(whole(2, 5, 8), whole(0))), emit(op.arange(2, 2 + 2 * n, 2, "int64"))]
        for kind, *operands, at, number in steps:
            one, two = (pool[which % len(pool)] for which in operands)
            pool.append(emit(applied(kind, one, two, at, number, n)))
        return pool[-1]

    return relax_module(build, ((n,), "int64"))


def applied(kind: int, one: Any, two: Any, at: int, number: int, n: Any) -> Any:
    """An operator by its number, of operands that it is legal for."""
    rank, dtype = int(one.ty.ndim), str(one.ty.dtype)
    axis = at % rank
    views = [
        lambda: op.expand_dims(one, at % (rank + 1)),
        lambda: op.broadcast_to(one, (2, *one.ty.shape.values)),
        lambda: op.permute_dims(one),
    ]
    if rank > 2:
        return op.take(one, relax.const(np.array(0)), axis)
    if dtype == "bool":
        more = [
            lambda: op.astype(one, "int64"),
            lambda: op.bitwise_and(one, one),
            lambda: op.logical_or(one, one),
        ]
        return [*views, *more][kind % 6]()
    before = emit(op.subtract(emit(op.take(one, whole(0), axis)), whole(number - 2)))
    more = [
        lambda: op.add(one, whole(number)),
        lambda: op.subtract(along(one, 1), along(two, 0)) if str(two.ty.dtype) == "int64" else one,
        lambda: op.take(one, emit(op.arange(0, n, 1, "int64")), axis),
        lambda: op.take(one, whole(0, 0), axis),
        lambda: op.concat([before, one], axis),
        lambda: op.cumsum(one, axis),
        lambda: COMPARISONS[at](one, whole(number)),
        lambda: (
            COMPARISONS[number](along(one, 1), along(two, 0)) if "int" in str(two.ty.dtype) else one
        ),
        lambda: op.index_tensor(one, [emit(op.arange(0, n, 1, "int64"))] * rank),
        lambda: op.full((n, 2), relax.const(number, "int64"), "int64"),
        lambda: op.astype(emit(op.astype(one, "int32")), "int64"),
    ]
    return [*views, *more][kind % (len(views) + len(more))]()


def along(value: Any, axis: int) -> Any:
    """The last dim alone, beside one of a single element."""
    value = emit(op.take(value, relax.const(np.array(0)), 0)) if value.ty.ndim > 1 else value
    return emit(op.astype(emit(op.expand_dims(value, axis)), "int64"))


def read(mod: tvm.IRModule) -> AffineValue | None:
    reader = Bindings.of(mod["main"])
    return AffineReader(reader.call).of(reader.order[-1])


@given(STEPS.filter(bool))
def test_what_is_read_holds_for_any_size(steps: Any) -> None:
    found = read(module(steps, N))
    if found is None:
        return
    for n in (3, 7):
        reader = Bindings.of(module(steps, n)["main"])
        known = array_of(reader.order[-1], reader.call)
        if known is None:  # Something lies outside.
            continue
        at = np.indices(known.shape)
        terms = (step * index for step, index in zip(found.steps, at, strict=True))
        np.testing.assert_array_equal(sum(terms, found.first), known.astype("int64"))


@pytest.mark.parametrize(
    ("build", "want"),
    [
        (lambda at: op.add(at, whole(2)), AffineValue(2, (1,))),
        (lambda at: op.subtract(op.expand_dims(at, 1), at), AffineValue(0, (1, -1))),
        (lambda at: op.take(at, emit(op.arange(1, N + 1, 1, "int64")), 0), AffineValue(1, (1,))),
        (lambda at: op.concat([whole(-1), at], 0), AffineValue(-1, (1,))),
        (lambda at: op.concat([whole(-2), at], 0), None),
        (lambda at: op.concat([at, whole(0)], 0), None),
        (lambda at: op.greater_equal(at, whole(0)), AffineValue(1, (0,))),
        (lambda at: op.greater_equal(at, whole(1)), None),
        (lambda at: op.less(at, whole(0)), AffineValue(0, (0,))),
        (lambda at: op.not_equal(op.subtract(at, at), whole(0)), AffineValue(0, (0,))),
        (lambda at: op.cumsum(op.subtract(at, at), 0), AffineValue(0, (0,))),
        (lambda at: op.cumsum(op.subtract(at, whole(0)), 0), None),
        (lambda at: op.multiply(at, at), None),
        # A size is computed with.
        (lambda at: op.add(at, N), None),
        (lambda at: op.subtract(N, at), None),
        (lambda at: op.less(at, N), None),
        (lambda at: op.take(at, N - 1, 0), None),
        (lambda at: op.reshape(op.broadcast_to(at, (2, N)), (2 * N,)), None),
        (lambda at: op.reshape(at, (1, N, 1)), AffineValue(0, (0, 1, 0))),
    ],
)
def test_what_is_counted(build: Any, want: AffineValue | None) -> None:
    positions = lambda _: build(emit(op.arange(0, N, 1, "int64")))  # noqa: E731
    assert read(relax_module(positions, ((N,), "int64"))) == want
