"""Constants are folded to the bits that TVM's own code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax import op

from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.fold_constants import FoldConstants


def scales(x: Any) -> Any:
    """A batch norm's factor and shift, narrowed."""
    factor = op.divide(relax.const(1.5), op.sqrt(op.add(x, relax.const(1e-5))))
    shift = op.subtract(op.negative(x), op.multiply(x, factor))
    return op.astype(op.concat([factor, shift], 1), "float16")


def weights(x: Any) -> Any:
    """A weight that is narrowed and turned."""
    turned = op.permute_dims(op.astype(x, "bfloat16"), [1, 0])
    one = op.squeeze(op.expand_dims(turned, 0), [0])
    return op.permute_dims(op.reshape(one, (5, 4, 12)))


def written_out(x: Any) -> Any:
    """A batch norm as frozen ones are written out, beside zeros."""
    deviation = op.rsqrt(op.add(x, relax.const(1e-5)))
    shift = op.subtract(x, op.multiply(x, deviation))
    return op.concat([shift, op.full((12, 3), relax.const(0.5), "float32")], 1)


def places(x: Any) -> Any:
    """Whole numbers, and truth values of them."""
    count = op.arange(0, 24, 2, "int64")
    column = op.reshape(op.multiply(count, relax.const(3, "int64")), [12, 1])
    apart = emit(op.subtract(column, count))
    is_near = op.less(apart, op.full((12, 12), relax.const(5, "int64"), "int64"))
    chosen = op.where(is_near, op.add(apart, count), column)
    repeated = op.broadcast_to(op.expand_dims(chosen, 0), (3, 12, 12))
    found = emit(op.take(repeated, relax.const(np.array([[2, 0]])), 1))
    rounded = op.astype(found, "float32")
    row = op.take(x, relax.const(np.array(3)), 0)
    low = op.take(op.reshape(row, [20]), relax.const(np.arange(12)), 0)
    return op.where(op.less(found, relax.const(9, "int64")), rounded, low)


def windows(x: Any) -> Any:
    """A mask of windows as Swin makes it: numbers put into slices, and compared."""
    numbers = emit(op.full((12, 20), relax.const(0, "float16"), "float16"))
    for number, (begin, end) in enumerate([(0, 7), (7, 12), (3, 3)]):
        part = op.full((12, end - begin), relax.const(number, "float16"), "float16")
        numbers = emit(op.slice_scatter(numbers, part, begin, end, 1, 1))
    rows = op.strided_slice(numbers, [1], [1], [9], [2])
    is_other = op.not_equal(op.reshape(rows, (12, 1, 4)), op.reshape(rows, (12, 4, 1)))
    above = op.greater(op.strided_slice(x, [1], [0], [4]), relax.const(1.0))
    return op.logical_and(is_other, op.reshape(above, (12, 4, 1)))


def applied(body: Any) -> tvm.IRModule:
    # Of all magnitudes, so that some are rounded, some denormal and some infinite.
    rng = np.random.default_rng(0)
    numbers = np.exp2(rng.uniform(-30, 30, (12, 20))).astype("float32")
    return relax_module(lambda: body(relax.const(numbers)))


def result(mod: tvm.IRModule) -> np.ndarray:
    body = mod["main"].body
    bound = {one.var: one.value for block in body.blocks for one in block.bindings}
    value = bound.get(body.body, body.body)
    assert isinstance(value, GenericConst), value
    return np.asarray(value.value.numpy())


@pytest.mark.parametrize("body", [scales, weights, written_out, places, windows])
def test_the_same_bits_as_by_tvm(body: Any) -> None:
    mod = applied(body)
    legal = relax.transform.LegalizeOps()(mod)
    want, got = result(relax.transform.FoldConstant()(legal)), result(FoldConstants()(mod))
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "body",
    [
        op.exp,
        lambda x: op.divide(*[op.astype(x, "int32")] * 2),
        lambda x: op.astype(x, "int32"),
        lambda _: op.rsqrt(relax.const(np.arange(1, 9).astype("float16"))),
        lambda x: op.broadcast_to(x, (8192, 12, 20)),
        lambda x: op.take(x, relax.const(np.array([3, 12])), 0),
    ],
)
def test_what_numpy_might_compute_otherwise_is_left(body: Any) -> None:
    mod = applied(body)
    tvm.ir.assert_structural_equal(
        FoldConstants()(mod), relax.transform.CanonicalizeBindings()(mod)
    )
