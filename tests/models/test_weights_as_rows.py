"""A single row is multiplied by constants N x K, however they were stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, te
from tvm.relax import op

from tests.models.running import check, only
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.moves.weights_as_rows import WeightsAsRows

RNG = np.random.default_rng(0)


def product(rows: tuple[int, ...], weight: Any) -> tvm.IRModule:
    """Rows times a weight, and a bias; the weight is a parameter where it has a shape alone."""

    def build(x: Any, weight: Any = weight) -> Any:
        return op.add(op.matmul(x, weight), relax.const(1.0, "float16"))

    return relax_module(build, (*rows, 64), *([weight] if isinstance(weight, tuple) else []))


def constant(dtype: Any = "float16") -> Any:
    return relax.const(RNG.uniform(-1, 1, (64, 48)).astype(dtype))


def test_one_row_by_a_constant_k_by_n_is_added_up_in_vectors_by_one_kernel() -> None:
    one = only(product((1, 1), constant()))
    assert "NT_matmul" in one.choice.text
    assert "param_0[T.Ramp(" in str(*one.program.kernels.values())
    check(one, "rows")


def test_the_constant_is_turned_and_keeps_its_type() -> None:
    weight = constant(ml_dtypes.bfloat16)
    mod = relax_module(lambda x: op.matmul(x, weight), (1, 64), dtype="bfloat16")
    func = WeightsAsRows()(mod)["main"]
    (turned,) = (
        one.value.args[0] for one in func.body.blocks[0].bindings if "permute" in str(one.value)
    )
    assert str(turned.ty.dtype) == "bfloat16"
    np.testing.assert_array_equal(turned.value.numpy(), weight.value.numpy().T)


@pytest.mark.parametrize(
    ("rows", "weight"),
    [(3, constant()), (1, (64, 48)), (1, relax.const(np.ones((2, 64, 48), "float16")))],
    ids=["rows", "input", "batch"],
)
def test_other_products_stay_as_they_are(rows: int, weight: Any) -> None:
    mod = product((1, rows), weight)
    tvm.ir.assert_structural_equal(WeightsAsRows()(mod), mod)


def test_functions_of_tir_beside_it_stay() -> None:
    """As those that write rows of a cache have them: GPT-2's steps ended in an error."""
    mod = product((1, 1), constant())
    rows = te.create_prim_func(
        [x := te.placeholder((4,), name="x"), te.compute((4,), lambda i: x[i])]
    )
    mod.update_func(tvm.ir.GlobalVar("write_rows"), rows)
    after = WeightsAsRows()(mod)
    assert after["write_rows"].same_as(mod["write_rows"])
    assert not after["main"].same_as(mod["main"])
