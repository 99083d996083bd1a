"""How the operands of a product lie in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tvm import s_tir

from tests.programs.products import Product
from tvm_layout_ext.analysis.contraction import read_contraction


@pytest.mark.parametrize(
    ("shape", "a_k_major", "b_k_major"),
    [((64, 32, 64), True, False), ((64, 1, 64), True, False), ((1, 64, 64), True, False)],
)
def test_a_column_of_one_element_is_no_run_along_k(
    shape: tuple[int, int, int], a_k_major: bool, b_k_major: bool
) -> None:
    sch = s_tir.Schedule(replace(Product(), shape=shape).func())
    read = read_contraction(sch.get(sch.get_sblock("C")))
    assert (read.a.k_major, read.b.k_major) == (a_k_major, b_k_major)
