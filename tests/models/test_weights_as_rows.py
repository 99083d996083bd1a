"""A single row is multiplied by constants N x K, however they were stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tests.models.running import check, scheduled
from tvm_layout_ext.models.moves.weights_as_rows import WeightsAsRows

RNG = np.random.default_rng(0)


def product(rows: tuple[int, ...], weight: Any, k: int = 64) -> tvm.IRModule:
    """Rows times a weight, and a bias."""
    x = relax.Var("x", relax.TensorType([*rows, k], str(weight.ty.dtype)))
    given = [x, weight] if isinstance(weight, relax.Var) else [x]
    builder = relax.BlockBuilder()
    with builder.function("main", given):
        with builder.dataflow():
            out = builder.emit(relax.op.matmul(x, weight))
            out = builder.emit_output(builder.emit(relax.op.add(out, relax.const(1.0, "float16"))))
        builder.emit_func_output(out)
    return builder.get()


def constant(dtype: Any = "float16") -> Any:
    return relax.const(RNG.uniform(-1, 1, (64, 48)).astype(dtype))


def test_one_row_by_a_constant_k_by_n_is_added_up_in_vectors_by_one_kernel() -> None:
    (one,) = scheduled(product((1, 1), constant()))
    assert one.choice.rule == "rows"
    assert "NT_matmul" in one.choice.text
    assert "param_0[T.Ramp(" in str(*one.program.kernels.values())
    check(one)


def test_the_constant_is_turned_and_keeps_its_type() -> None:
    weight = relax.const(RNG.uniform(-1, 1, (64, 48)).astype(ml_dtypes.bfloat16))
    x = relax.Var("x", relax.TensorType([1, 64], "bfloat16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.matmul(x, weight)))
    func = WeightsAsRows()(builder.get())["main"]
    (turned,) = (
        one.value.args[0] for one in func.body.blocks[0].bindings if "permute" in str(one.value)
    )
    assert str(turned.ty.dtype) == "bfloat16"
    np.testing.assert_array_equal(turned.value.numpy(), weight.value.numpy().T)


@pytest.mark.parametrize("kind", ["rows", "input", "batch"])
def test_other_products_stay_as_they_are(kind: str) -> None:
    weight: Any = constant()
    if kind == "input":
        weight = relax.Var("weight", relax.TensorType([64, 48], "float16"))
    if kind == "batch":
        weight = relax.const(np.ones((2, 64, 48), "float16"))
    mod = product((1, 3) if kind == "rows" else (1, 1), weight)
    tvm.ir.assert_structural_equal(WeightsAsRows()(mod), mod)
