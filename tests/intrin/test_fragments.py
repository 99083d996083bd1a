"""Fragments are laid out as the PTX ISA's tables say, and the intrinsics are known by name."""

from __future__ import annotations

from itertools import product

import pytest
from tvm import s_tir

from tvm_layout_ext import ScheduleError, intrin
from tvm_layout_ext.gpu.hardware import architecture


@pytest.mark.parametrize(("matrix", "bits"), list(product("ab", (8, 16, 32))))
def test_every_element_of_an_operand_has_its_own_place(matrix: str, bits: int) -> None:
    depth = 256 // bits
    places = {
        intrin.operand_place(matrix, bits, row, k): (row, k)
        for row in range(16)
        for k in range(depth)
    }
    assert sorted(places) == list(product(range(32), range(depth // 2)))
    assert all(intrin.operand_at(matrix, bits, *held) == at for held, at in places.items())


def test_every_sum_has_its_own_place() -> None:
    places = {intrin.sums_place(i, j): (i, j) for i in range(16) for j in range(16)}
    assert sorted(places) == list(product(range(32), range(8)))
    assert all(intrin.sums_at(*held) == at for held, at in places.items())


@pytest.mark.parametrize(
    ("matrix", "bits", "lane", "element", "at"),
    [
        # PTX ISA, m16n8k16 with 16 bits: row groupID (+ 8 for a2, a3, a6, a7), column 2 * t + i % 2
        # (+ 8 from a4 on).
        ("a", 16, 5, 0, (1, 2)),
        ("a", 16, 5, 3, (9, 3)),
        ("a", 16, 5, 4, (1, 10)),
        # b0, b1 are rows 2 * t and 2 * t + 1 of column groupID, b2 and b3 eight further on.
        ("b", 16, 5, 1, (1, 3)),
        ("b", 16, 5, 2, (1, 10)),
        ("b", 16, 5, 4, (9, 2)),
        # m16n8k8 of tf32: a1 is 8 rows down, a2 four columns right.
        ("a", 32, 5, 1, (9, 1)),
        ("a", 32, 5, 2, (1, 5)),
        # m16n8k32 of 8 bits: a4 to a7 are 8 rows down, a8 is 16 columns right.
        ("a", 8, 5, 4, (9, 4)),
        ("a", 8, 5, 8, (1, 20)),
        ("b", 8, 5, 4, (1, 20)),
    ],
)
def test_operands_lie_as_the_isa_says(
    matrix: str, bits: int, lane: int, element: int, at: tuple[int, int]
) -> None:
    assert intrin.operand_at(matrix, bits, lane, element) == at


def test_names_cover_types_matrices_memories_and_sizes() -> None:
    names = intrin.names()
    operands = {one.operand for one in intrin.INSTRUCTIONS.values()}
    for dtype, matrix, count, scope, major in product(
        operands, "ab", (1, 2, 4), ("shared", "shared.dyn"), ("k_major", "mn_major")
    ):
        short = dtype in ("float16", "bfloat16") or major == "k_major"
        kind = "ldmatrix" if short else "load"
        assert f"layout_ext.{kind}.x{count}.{matrix}.{dtype}.{major}.{scope}" in names
    assert "layout_ext.stmatrix.x4.bfloat16.column_major.shared" in names


def test_an_intrinsic_is_registered_once_and_on_demand() -> None:
    name = "layout_ext.ldmatrix.x2.b.bfloat16.mn_major.shared"
    assert intrin.register(name) == intrin.register(name) == name
    assert s_tir.TensorIntrin.get(name).impl is not None


def test_refuses_an_unknown_intrinsic() -> None:
    with pytest.raises(ScheduleError, match=r"no tensor intrinsic 'layout_ext.none'"):
        intrin.register("layout_ext.none")


@pytest.mark.parametrize(
    ("name", "operand", "sums", "arch", "why"),
    [
        ("auto", "float64", "float64", "sm_90a", "float64 into float64; there are float16 into"),
        ("auto", "float32", "float32", "sm_90a", "instruction='mma.m16n8k8.f32.tf32'"),
        ("auto", "float8_e4m3fn", "float32", "sm_80", "needs compute capability 8.9; sm_80"),
        ("auto", "float16", "float32", "sm_75", "needs compute capability 8.0; sm_75"),
        ("mma.m16n8k16.f32.f16", "bfloat16", "float32", "sm_90a", "the block bfloat16 into"),
        ("wmma", "float16", "float32", "sm_90a", "no tensor-core instruction 'wmma'"),
    ],
)
def test_refuses_types_and_gpus(name: str, operand: str, sums: str, arch: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        intrin.choose(name, operand, sums, architecture(arch))
