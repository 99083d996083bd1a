"""Sums of tensor cores that start at what is added to them: structure, results, refusals."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.products import config
from tvm_layout_ext import decisions, te
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.transform import FuseDotAdd, MarkAnnotated


def plain(c: Any, d: Any, i: Any, j: Any) -> Any:
    return c[i, j] + d[i, j]


@dataclass(frozen=True)
class Sum:
    """``E = end(A @ B, D)``, tiles of 32 x 32 x 32 and four warps."""

    end: Any = plain
    operand: str = "float16"
    sums: str = "float32"
    addend: str = ""
    out: str = ""
    shape: tuple[int, int, int] = (64, 64, 64)
    d_shape: tuple[int, ...] = ()
    instruction: str = "auto"
    tile: tuple[int, int, int] = (32, 32, 32)
    stages: int = 1
    prefetch: int = 0

    def __str__(self) -> str:
        # The name of a function, for its address differs from process to process.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return "-".join(str(value) for value in (values | {"end": self.end.__name__}).values())

    def schedule(self) -> s_tir.Schedule:
        m, n, depth = self.shape
        a = te.placeholder((m, depth), self.operand, "A")
        b = te.placeholder((depth, n), self.operand, "B")
        d = te.placeholder(self.d_shape or (m, n), self.addend or self.sums, "D")
        k = te.reduce_axis((0, depth), "k")

        def wide(value: Any) -> Any:
            return value if self.operand == self.sums else value.astype(self.sums)

        c = te.compute((m, n), lambda i, j: te.sum(wide(a[i, k]) * wide(b[k, j]), axis=k), "C")
        e = te.compute((m, n), lambda i, j: self.end(c, d, i, j).astype(self.out or self.sums), "E")
        func = te.create_prim_func([a, b, d, e]).with_attr("global_symbol", "main")
        sch = s_tir.Schedule(func)
        knobs = config(self.tile) | {"stages": self.stages, "prefetch": self.prefetch}
        gemm.multiply(sch, "C", knobs, self.instruction)
        return sch

    def inputs(self) -> list[np.ndarray]:
        """Small whole numbers, so that the order of additions does not matter."""
        m, n, depth = self.shape
        draw = np.random.default_rng(3)
        sizes = ((m, depth), (depth, n), self.d_shape or (m, n))
        types = (self.operand, self.operand, self.addend or self.sums)
        return [
            draw.integers(-3, 4, size).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
            for size, dtype in zip(sizes, types, strict=True)
        ]


def made_of(sch: s_tir.Schedule) -> tuple[tvm.IRModule, list[str]]:
    """What FuseDotAdd makes of a schedule, and what it tells."""
    marked = MarkAnnotated()(sch.mod)
    with decisions.collect() as made:
        mod = FuseDotAdd()(marked)
    return mod, [f"{d.subject}: {d.text}" for d in made]


def run(what: Sum, want: Any) -> Any:
    """Simulate it, fused, and compare with whole numbers."""
    sch = what.schedule()
    _, notes = made_of(sch)
    assert [note.partition(": ")[2] for note in notes] == ["starts at D, which block E added"]
    a, b, d = what.inputs()
    report = tlx.simulate(sch.mod, a, b, d, None)
    product = a.astype(np.float64) @ b.astype(np.float64)
    (got,) = report.outputs.values()
    np.testing.assert_array_equal(got.astype(np.float64), want(product, d.astype(np.float64)))
    assert report.hazards == []
    return report


def test_the_fragment_starts_at_the_addend_and_the_addition_is_gone() -> None:
    sch = Sum().schedule()
    mod, _ = made_of(sch)
    before, after = sch.mod.script(), mod.script()
    assert re.search(r"E_shared_dyn\[v_i, v_j\] = C_reindex_warp\[v_i, v_j\] \+ D\[", before)
    assert re.search(r"E_shared_dyn\[v_i, v_j\] = C_reindex_warp\[v_i, v_j\]\n", after)
    assert "layout_ext.clear.float32" in before
    assert "layout_ext.clear.float32" not in after
    assert len(re.findall(r"C_reindex_warp\[.*\] = D\[v_i_o \* 16", after)) == 1
    tvm.ir.assert_structural_equal(FuseDotAdd()(mod), mod)


def test_each_lane_loads_pairs_of_what_it_holds() -> None:
    text = tlx.lower(Sum().schedule(), target=tlx.cuda_target("sm_80")).script()
    assert len(re.findall(r"D_local\[0:2\] = D_1\[T\.Ramp\(", text)) == 4
    assert len(re.findall(r"C_reindex_warp\[\d\] = D_local\[[01]\]", text)) == 8
    assert text.index("D_1[T.Ramp(") < text.index("for k_0_0 in range(2):")
    assert "T.float32(0.0)" not in text


@pytest.mark.matrix
@pytest.mark.parametrize(
    "what",
    [
        Sum(),
        Sum(operand="bfloat16"),
        Sum(sums="float16"),
        Sum(operand="float32", instruction="mma.m16n8k8.f32.tf32"),
        Sum(operand="int8", sums="int32"),
        Sum(stages=3),
        Sum(stages=3, prefetch=1, shape=(64, 64, 160)),
        Sum(shape=(50, 72, 40)),
        Sum(shape=(33, 19, 17)),
        Sum(shape=(64, 128, 64), tile=(64, 64, 32)),
    ],
    ids=str,
)
def test_result(what: Sum) -> None:
    run(what, lambda product, d: product + d)


def test_a_row_that_is_added_to_each_row_with_relu_and_rounding() -> None:
    def end(c: Any, d: Any, i: Any, j: Any) -> Any:
        return te.max(d[j] + c[i, j], 0.0)

    what = Sum(end, shape=(40, 70, 24), d_shape=(70,), out="float16")
    run(what, lambda product, d: np.maximum(product + d, 0))


def test_a_turned_addend() -> None:
    what = Sum(lambda c, d, i, j: c[i, j] + d[j, i], shape=(48, 64, 32), d_shape=(64, 48))
    run(what, lambda product, d: product + d.T)


@pytest.mark.parametrize("step", [0, 2])
def test_addends_that_are_no_neighbours_are_loaded_one_by_one(step: int) -> None:
    """A column that is added to each column, and every second element."""
    what = Sum(lambda c, d, i, j: c[i, j] + d[i, step * j], d_shape=(64, 128))
    run(what, lambda product, d: product + (d[:, ::2] if step else d[:, :1]))
    text = tlx.lower(what.schedule(), target=tlx.cuda_target("sm_80")).script()
    assert "D_1[" in text
    assert "D_1[T.Ramp(" not in text


def test_sectors_of_the_addend_stay_as_they_were() -> None:
    """As many sectors as the same loads after the sum, where a subtraction keeps them."""
    fused = run(Sum(), lambda product, d: product + d)
    kept = Sum(lambda c, d, i, j: c[i, j] - d[i, j]).schedule()
    assert made_of(kept)[1] == []
    after = tlx.simulate(kept.mod, *Sum().inputs(), None)
    loads = [sum(a.sectors for a in r.accesses if a.buffer.startswith("D")) for r in (fused, after)]
    assert loads[0] == loads[1] == 64 * 64 * 4 // 32


def left(sch: s_tir.Schedule, why: str) -> None:
    mod, notes = made_of(sch)
    assert [note.partition("adds: ")[2] for note in notes] == [why]
    tvm.ir.assert_structural_equal(mod, MarkAnnotated()(sch.mod))


def test_an_addend_of_another_type_is_left_alone() -> None:
    def end(c: Any, d: Any, i: Any, j: Any) -> Any:
        return c[i, j] + d[i, j].astype("float32")

    left(Sum(end, addend="float16").schedule(), "that is not one element of a buffer")


def test_sums_that_are_read_twice_are_left_alone() -> None:
    def end(c: Any, d: Any, i: Any, j: Any) -> Any:
        return (c[i, j] + d[i, j]) * c[i, j]

    left(Sum(end).schedule(), "it is read elsewhere, too")


def test_an_addend_that_is_copied_here_is_left_alone() -> None:
    sch = Sum().schedule()
    sch.cache_read("E", 1, "shared.dyn")
    left(sch, "D_shared.dyn is written in this function, maybe after the sum starts")


def test_sums_that_are_cleared_apart_are_left_alone() -> None:
    sch = Sum().schedule()
    (tile,) = [b for b in sch.get_child_blocks(sch.get_sblock("root")) if _name(sch, b) == "C_o"]
    sch.decompose_reduction(tile, sch.get_loops(tile)[4])
    left(sch, "block C_init clears it apart from its product")


def _name(sch: s_tir.Schedule, block: Any) -> str:
    return str(sch.get(block).name_hint)
