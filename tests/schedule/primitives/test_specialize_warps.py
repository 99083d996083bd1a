"""``specialize_warps`` and ``persistent``: arguments, and requests that nothing fulfils."""

from __future__ import annotations

import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.mapped import computed
from tests.programs.products import multiplied
from tvm_layout_ext import ScheduleError, decisions, te


def copied() -> s_tir.Schedule:
    return computed((4, 64), lambda a, i, j: a[i, j])


def test_only_a_few_serial_iterations_are_warpgroups() -> None:
    sch = copied()
    i, j = sch.get_loops("B")
    with pytest.raises(ScheduleError, match=r"Loop i has 4 iterations; 1 to 3 warpgroups can"):
        sch.specialize_warps(i)
    one, _ = sch.split(i, [2, 2])
    sch.bind(one, "threadIdx.y")
    with pytest.raises(ScheduleError, match=r"already bound to threadIdx.y"):
        sch.specialize_warps(one)
    with pytest.raises(
        ScheduleError, match=r"persistent needs a loop that is bound to blockIdx; j"
    ):
        sch.persistent(j)
    with pytest.raises(ScheduleError, match=r"needs a loop, as get_loops gives"):
        sch.specialize_warps("B")
    one, _ = sch.split(j, [1, 64])
    with pytest.raises(ScheduleError, match=r"has 1 iterations; two warpgroups take turns"):
        sch.specialize_warps(one, mode="pingpong")
    with pytest.raises(ScheduleError, match=r'"cooperative" or "pingpong", not \'turns\''):
        sch.specialize_warps(one, "turns")


def test_warps_of_mma_sync_take_no_turns() -> None:
    sch = w.product((256, 256, 128))
    with tlx.cuda_target("sm_80"):
        tc = sch.use_tensor_core("product", tile=(128, 128, 64))
    sch.rasterize(tc.m, tc.n)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.reverse_compute_at(tc.result, tc.n)
    with decisions.collect() as made:
        sch.specialize_warps(tc.warpgroup, mode="pingpong")
    assert "only warpgroups of wgmma take turns" in str(made[0])


def test_a_kernel_without_wgmma_is_neither_specialised_nor_persistent() -> None:
    sch = copied()
    i, j = sch.get_loops("B")
    sch.bind(j, "threadIdx.x")
    sch.bind(i, "blockIdx.x")
    sch.persistent(i)
    with pytest.raises(ScheduleError, match=r"Loop i has persistent, but nothing inside it"):
        tlx.lower(sch, target=w.SM90A)
    sch = copied()
    i, j = sch.get_loops("B")
    sch.bind(j, "threadIdx.x")
    warpgroup, _ = sch.split(i, [2, 2])
    sch.specialize_warps(warpgroup)
    with pytest.raises(ScheduleError, match=r"has specialize_warps, but nothing inside it"):
        tlx.lower(sch, target=w.SM90A)


def test_tma_fills_only_tiles_of_wgmma() -> None:
    sch = copied()
    i, j = sch.get_loops("B")
    copy = sch.cache_read("B", 0, "shared")
    sch.compute_at(copy, i)
    sch.bind(j, "threadIdx.x")
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    sch.bind(sch.add_unit_loop(i), "blockIdx.x")
    (made,) = sch.pipeline(i, 2, async_copy="tma")
    assert made is not None
    with pytest.raises(ScheduleError, match=r"asks for TMA, which fills only the tiles"):
        tlx.lower(sch, target=w.SM90A)
    with pytest.raises(ScheduleError, match=r'"auto" or "tma", not \'bulk\''):
        sch.pipeline(i, 2, async_copy="bulk")


@pytest.mark.parametrize(
    ("arch", "multiples", "instruction", "text"),
    [
        ("sm_80", (128, 128, 64), "wgmma", "sm_90a alone; sm_80 multiplies by mma.sync"),
        ("sm_90", (128, 128, 64), "wgmma", "sm_90a alone; sm_90 multiplies by mma.sync"),
        ("sm_90a", (128, 264, 64), "wgmma", "264 columns of float16; multiples of 8 up to 256"),
        (
            "sm_90a",
            (96, 128, 64),
            "wgmma",
            "The multiple of m is 96; wgmma.* needs multiples of 64",
        ),
        ("sm_90a", (128, 128, 64), "wgmma.m64n64k16.f32.f16", "tiles and types make wgmma.m64n128"),
    ],
)
def test_instructions_that_are_not_there_are_refused(
    arch: str, multiples: tuple[int, int, int], instruction: str, text: str
) -> None:
    sch = w.product((256, 512, 128))
    before = sch.mod
    with pytest.raises(ScheduleError, match=text):
        sch.use_tensor_core("product", instruction, multiples=multiples, arch=arch)
    assert sch.mod.script() == before.script()


def test_types_without_wgmma_here_are_refused() -> None:
    tensors = multiplied((64, 64, 64), "float64", "float64", b_transposed=True)
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    with pytest.raises(ScheduleError, match="float64"):
        sch.use_tensor_core("C", "wgmma", arch="sm_90a")
