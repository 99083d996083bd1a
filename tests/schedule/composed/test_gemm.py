"""``sch.gemm`` and ``sch.cooperative_copy`` compute what they should, and say what they cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.mapped import computed
from tests.programs.products import multiplied
from tests.programs.running import gives
from tvm_layout_ext import te

RNG = np.random.default_rng(0)


def product(m: int, n: int, k: int, relu: bool = False) -> s_tir.Schedule:
    a, b, c = multiplied((m, n, k))
    d = te.compute((m, n), lambda i, j: te.max(c[i, j] - 8.0, 0.0), name="D") if relu else c
    return s_tir.Schedule(te.create_prim_func([a, b, d]))


def run(sch: s_tir.Schedule, m: int, n: int, k: int, name: str = "C") -> Any:
    a, b = RNG.random((m, k)).astype("float16"), RNG.random((k, n)).astype("float16")
    report = tlx.simulate(sch, a, b)
    want = a.astype("f") @ b.astype("f")
    if name == "D":
        want = np.maximum(want - 8, 0)
    assert np.allclose(report.outputs[name], want, rtol=1e-3, atol=1e-3)
    assert not report.hazards
    return report


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((128, 128, 64), {}),
        ((70, 90, 50), {"tile": (64, 64, 32), "warps": (1, 2), "stages": 1}),
        ((128, 128, 64), {"swizzle": "pad", "prefetch": False, "group": 1, "cluster": 1}),
    ],
)
def test_a_product_without_conflicts(shape: Any, options: Any) -> None:
    sch = product(*shape)
    loops = sch.gemm("C", **options)
    assert run(sch, *shape).bank_conflicts == 0
    assert loops.tensor_core.instruction == "mma.m16n8k16.f32.f16"
    assert repr(loops) == (
        "Gemm(m, n, warp_m, warp_n, k, tensor_core, k_inner, m_inner, n_inner, copies)"
    )
    assert len(loops.copies) == 2
    tags = [sch.get(one).thread_binding.thread_tag for one in (loops.m, loops.n, loops.warp_m)]
    assert tags == ["blockIdx.y", "blockIdx.x", "threadIdx.y"]


def test_what_follows_the_product_is_computed_from_registers() -> None:
    sch = product(64, 64, 32, relu=True)
    sch.gemm("C", tile=(64, 64, 32), warps=(2, 2), stages=2)
    run(sch, 64, 64, 32, "D")
    assert len(tlx.device_program(sch).kernels) == 1


def test_a_product_by_warpgroups() -> None:
    sch = product(128, 128, 128)
    loops = sch.gemm("C", tile=(128, 128, 64), stages=2, instruction="wgmma")
    run(sch, 128, 128, 128)
    assert loops.warp_n is None
    assert "wgmma" in tlx.cuda_source(sch)


@pytest.mark.parametrize("instruction", ["auto", "fma"])
def test_a_product_in_full(instruction: str) -> None:
    a, b, c = multiplied((64, 64, 32), "float32", b_transposed=True)
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    loops = sch.gemm("C", (64, 64, 16), (2, 1), 2, instruction=instruction)
    arrays = [RNG.random((64, 32), np.float32) for _ in "ab"]
    report = tlx.simulate(sch, *arrays)
    assert np.allclose(report.outputs["C"], arrays[0] @ arrays[1].T, rtol=1e-6)
    assert not report.hazards
    assert report.bank_conflicts == 0
    # Two wavefronts for a load of 16 bytes, as pairs of lanes share rows, or columns.
    loads = [one for one in report.accesses if one.kind == "load" and "shared" in one.scope]
    assert {one.vector_bytes for one in loads} == {16}
    assert all(one.wavefronts == 2 * one.requests for one in loads)
    assert [int(sch.get(one).extent) for one in (loops.m_inner, loops.n_inner)] == [8, 8]


def test_loops_are_there_to_go_on_with() -> None:
    sch = product(128, 128, 64)
    loops = sch.gemm("C", stages=2)
    for one in (loops.k, loops.copies[0].steps, loops.copies[1].vector, loops.k_inner):
        assert isinstance(sch.get(one), tvm.tirx.For)
    assert sch.get(loops.copies[0].vector).kind == tvm.tirx.ForKind.VECTORIZED


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tile": (100, 128, 32)}, "cannot share 100 of tile 100x128x32 out to 2 warps .* of 32 "),
        ({"tile": (128, 128, 8)}, "cannot share 8 of tile 128x128x8"),
        ({"tile": 128}, "tile of gemm must be 3 positive whole numbers, not 128"),
        ({"warps": (2, 0)}, "warps of gemm must be 2 positive whole numbers"),
        ({"stages": 0}, "stages of gemm must be at least 1, not 0"),
        ({"group": "8"}, "group of gemm must be a whole number, not '8'"),
        ({"instruction": "dp4a"}, "There is no tensor-core instruction 'dp4a'"),
        ({"tile": (128, 256, 32), "instruction": "wgmma"}, "needs multiples of 64"),
        ({"instruction": "fma"}, "gemm multiplies float32 by fma, not float16"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(options: Any, text: str) -> None:
    sch = product(128, 128, 64)
    before = sch.mod
    with pytest.raises(tlx.ScheduleError, match=text):
        sch.gemm("C", **options)
    tvm.ir.assert_structural_equal(sch.mod, before)


def staged() -> tuple[s_tir.Schedule, Any, Any]:
    """A transpose by 4 warps of tiles of 32 x 32, its copy to shared memory still to be placed."""
    sch = computed((64, 64), lambda a, i, j: a[j, i])
    block = sch.get_sblock("B")
    copy = sch.cache_read(block, 0, "shared")
    i, j = sch.get_loops(block)
    i, rows = sch.split(i, [None, 32])
    j, x = sch.split(j, [None, 32])
    steps, y = sch.split(rows, [None, 4])
    sch.reorder(i, j, steps, y, x)
    for loop, tag in ((i, "blockIdx.y"), (j, "blockIdx.x"), (y, "threadIdx.y"), (x, "threadIdx.x")):
        sch.bind(loop, tag)
    return sch, copy, j


def test_a_copy_takes_the_warps_that_are_there() -> None:
    sch, copy, loop = staged()
    loops = sch.cooperative_copy(copy, loop, swizzle="auto")
    assert [int(sch.get(one).extent) for one in (loops.y, loops.z, loops.x)] == [4, 1, 32]
    assert int(sch.get(loops.vector).extent) == 4
    a = RNG.random((64, 64), np.float32)
    gives(sch, a, B=a.T)


def test_a_copy_that_has_no_place_is_refused() -> None:
    sch, copy, loop = staged()
    with pytest.raises(tlx.ScheduleError, match="cooperative_copy needs a loop"):
        sch.cooperative_copy(copy, copy)
    with pytest.raises(tlx.ScheduleError, match="finds no single block named 'nobody'"):
        sch.cooperative_copy("nobody", loop)
    with pytest.raises(tlx.ScheduleError, match="must be 2 positive whole numbers"):
        sch.cooperative_copy(copy, loop, warps=(2,))
