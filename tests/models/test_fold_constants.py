"""Constants are folded to the bits that TVM's own code gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax import op

from tvm_layout_ext.models.fold_constants import FoldConstants

Emit = Callable[[Any], Any]


def scales(emit: Emit, x: Any) -> Any:
    """A batch norm's factor and shift, narrowed."""
    deviation = emit(op.sqrt(emit(op.add(x, relax.const(1e-5, "float32")))))
    factor = emit(op.divide(relax.const(1.5, "float32"), deviation))
    shift = emit(op.subtract(emit(op.negative(x)), emit(op.multiply(x, factor))))
    return op.astype(emit(op.concat([factor, shift], 1)), "float16")


def weights(emit: Emit, x: Any) -> Any:
    """A weight that is narrowed and turned."""
    turned = emit(op.permute_dims(emit(op.astype(x, "bfloat16")), [1, 0]))
    one = emit(op.squeeze(emit(op.expand_dims(turned, 0)), [0]))
    return emit(op.permute_dims(emit(op.reshape(one, (5, 4, 12)))))


def applied(body: Any) -> tvm.IRModule:
    # Of all magnitudes, so that some are rounded, some denormal and some infinite.
    rng = np.random.default_rng(0)
    numbers = np.exp2(rng.uniform(-30, 30, (12, 20))).astype("float32")
    builder = relax.BlockBuilder()
    with builder.function("main", []):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, relax.const(numbers)))
        builder.emit_func_output(out)
    return builder.get()


def result(mod: tvm.IRModule) -> np.ndarray:
    body = mod["main"].body
    bound = {one.var: one.value for block in body.blocks for one in block.bindings}
    value = bound.get(body.body, body.body)
    assert isinstance(value, GenericConst), value
    return np.asarray(value.value.numpy())


@pytest.mark.parametrize("body", [scales, weights])
def test_the_same_bits_as_by_tvm(body: Any) -> None:
    mod = applied(body)
    legal = relax.transform.LegalizeOps()(mod)
    want, got = result(relax.transform.FoldConstant()(legal)), result(FoldConstants()(mod))
    assert got.dtype == want.dtype
    assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "body",
    [
        lambda _, x: op.exp(x),
        lambda emit, x: op.divide(*[emit(op.astype(x, "int32"))] * 2),
        lambda _, x: op.broadcast_to(x, (64, 12, 20)),
    ],
)
def test_what_numpy_might_compute_otherwise_is_left(body: Any) -> None:
    mod = applied(body)
    tvm.ir.assert_structural_equal(
        FoldConstants()(mod), relax.transform.CanonicalizeBindings()(mod)
    )
