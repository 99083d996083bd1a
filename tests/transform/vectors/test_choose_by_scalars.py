"""Vectors are chosen by one condition where all of their elements have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text, nvcc_says
from tvm_layout_ext.ir.annotations import MARK
from tvm_layout_ext.transform import ChooseByScalars

SHAPE = (24, 128)
#: Where a mask stands that hides elements: one of a row, of a column, or of each element.
MASKS: dict[str, tuple[tuple[int, ...], Any]] = {
    "rows": ((24,), lambda i, j: (i,)),
    "columns": ((128,), lambda i, j: (j,)),
    "elements": (SHAPE, lambda i, j: (i, j)),
}


def hidden(mask: str, dtype: str) -> Any:
    shape, at = MASKS[mask]
    a, m = te.placeholder(SHAPE, dtype, "A"), te.placeholder(shape, "float32", "M")

    def chosen(i: Any, j: Any) -> Any:
        return tirx.Select(m(*at(i, j)) > tirx.const(0, "float32"), a(i, j), tirx.const(0, dtype))

    b = te.compute(SHAPE, chosen, "B")
    sch = tvm.s_tir.Schedule(te.create_prim_func([a, m, b]))
    sch.auto_coalesce("B")
    return sch


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("mask", MASKS)
def test_elements_are_hidden(mask: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-9, 9, SHAPE).astype(dtype)
    m = rng.normal(size=MASKS[mask][0]).astype("float32")
    report = tlx.simulate(hidden(mask, dtype), a, m, None)
    shown = m[:, None] if mask == "rows" else m
    assert not report.hazards
    assert (report.outputs["B"] == np.where(shown > 0, a, 0)).all()


@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("mask", MASKS)
def test_nvcc_takes_it(mask: str, dtype: str, tmp_path: Path) -> None:
    """TVM keeps conditions in a variable of the values' type."""
    assert not nvcc_says(cuda_text(hidden(mask, dtype)), tmp_path, "-w", "-cubin")


def test_a_vector_of_conditions_stays() -> None:
    i = tirx.Var("i", "int32")
    lanes = tirx.Ramp(i, 1, 4) < tirx.Broadcast(tirx.const(8, "int32"), 4)
    wide, zero = (tirx.Broadcast(tirx.const(one, "float32"), 4) for one in (1, 0))
    func = tirx.PrimFunc([i], tirx.Evaluate(tirx.Select(lanes, wide, zero)))
    func = func.with_attr(MARK, True)
    mod = tvm.IRModule({"main": func})
    assert ChooseByScalars()(mod)["main"].same_as(func)
    one = tirx.Select(tirx.Broadcast(i < 8, 4), wide, zero)
    mod = tvm.IRModule({"main": func.with_body(tirx.Evaluate(one))})
    assert "Select" not in str(ChooseByScalars()(mod))
