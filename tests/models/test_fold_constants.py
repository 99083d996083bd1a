"""Constants are folded to the bits that TVM's own code gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.ir.expr import GenericConst
from tvm.relax import op

from tests.programs.relaxed import relax_module
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
        op.exp,
        lambda x: op.divide(*[op.astype(x, "int32")] * 2),
        lambda x: op.broadcast_to(x, (64, 12, 20)),
    ],
)
def test_what_numpy_might_compute_otherwise_is_left(body: Any) -> None:
    mod = applied(body)
    tvm.ir.assert_structural_equal(
        FoldConstants()(mod), relax.transform.CanonicalizeBindings()(mod)
    )
