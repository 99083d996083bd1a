"""Names of ``mma``'s operands that TVM's text of the instruction would take for its own."""

from __future__ import annotations

import re

import pytest
from tvm import s_tir

from tests.programs.emitted import cuda_text
from tests.programs.products import config, multiplied
from tvm_layout_ext import te
from tvm_layout_ext.schedules import gemm


def source(first: str, second: str, result: str) -> str:
    tensors = multiplied((64, 64, 64), names=(first, second, result), b_transposed=True)
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    gemm.multiply(sch, result, config((64, 64, 32)))
    return cuda_text(sch)


NAMES = [("B", "A", "sums"), ("aBc", "W", "sums"), ("x", "D_in", "sums"), ("C", "B", "D")]


@pytest.mark.parametrize("names", NAMES)
def test_operands_are_read_by_one_name_each(names: tuple[str, str, str]) -> None:
    operands = re.findall(r'"r"\(\(\(unsigned \*\)\(([^)]*)\)', source(*names))
    assert operands
    assert all(re.fullmatch(r"\w+_warp_ptr \+ \d+", one) for one in operands)


def test_names_that_survive_stay_as_they_are() -> None:
    assert "A_reindex_shared_dyn_warp_ptr + 0" in source("A", "B", "sums")
