"""Control flow, warps, dynamic shapes, several kernels, and the checks of the call itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import te

import tvm_layout_ext as tlx
from tests.programs import kernels, simulated
from tests.programs.running import gives
from tvm_layout_ext.build import device_program
from tvm_layout_ext.errors import SimulationError, TargetError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.machine import machine

INTS = kernels.random((64,), "int32")


def collatz_steps(n: int) -> int:
    steps = 0
    while n > 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def test_while_loops_end_for_each_thread_by_itself() -> None:
    gives(simulated.collatz, INTS, B=[collatz_steps(int(n)) for n in INTS])


def test_endless_loop_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MAX_TURNS", 1000)
    with pytest.raises(SimulationError, match=r"while loop at line \d+ took 1,000 turns"):
        simulate(simulated.endless, INTS)


def test_loop_bounds_may_differ_among_threads() -> None:
    gives(simulated.triangle, INTS, B=np.r_[0, np.cumsum(INTS)[:-1]])


def test_break_and_continue() -> None:
    values = np.random.default_rng(0).integers(0, 6, 64).astype("int32")
    report = simulate(simulated.leaving_loops, values)
    wanted = []
    for v in range(64):
        total = 0
        for k in range(v):
            if values[k] == 3:
                continue
            if values[k] == 4 and k > 8:
                break
            total += k
        wanted.append(total)
    np.testing.assert_array_equal(report.outputs["B"], wanted)


def test_roles_exchange_through_barriers() -> None:
    report = simulate(simulated.two_roles, INTS)
    np.testing.assert_array_equal(report.outputs["B"][:32], (INTS[:32] + 2) * 10)
    assert report.barriers == 6


def test_warps_go_on_past_a_branch_that_others_wait_in() -> None:
    report = gives(simulated.separate_ifs, INTS, B=np.r_[INTS[:32] * 2, INTS[:32] * 2 + 1])
    assert report.barriers == 1


def test_warp_memory() -> None:
    A = kernels.random((256,))
    report = simulate(simulated.warp_memory, A)
    assert report.hazards == []
    wanted = np.roll(A.reshape(8, 32), -1, axis=1).ravel()
    np.testing.assert_array_equal(report.outputs["B"], wanted)


def test_float_atomics_add_up() -> None:
    A = kernels.random((256,))
    report = simulate(simulated.float_sum, A, np.ones(1, "float32"))
    assert report.hazards == []
    np.testing.assert_allclose(report.outputs["B"], 1 + A.sum(), rtol=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 5, 300])
def test_dynamic_shape(rows: int) -> None:
    A = kernels.random((rows, 32))
    report = gives(simulated.dynamic, A, B=A[:, ::-1] * 2)
    assert report.blocks == (rows, rows)


@pytest.mark.parametrize("rows", [1, 7])
def test_several_kernels_share_workspace(rows: int) -> None:
    A = kernels.random((rows, 32), "float16")
    report = gives(simulated.two_kernels, A, B=(A * np.float16(2))[:, ::-1])
    assert {a.buffer for a in report.accesses} == {"A", "W", "B"}
    assert report.script.count("def ") == 2


def test_lowered_module_runs_as_its_schedule_does() -> None:
    A = kernels.random((64, 64))
    schedule = kernels.transpose(64, pad=1)
    direct, lowered = simulate(schedule, A), simulate(tlx.lower(schedule), A)
    np.testing.assert_array_equal(direct.outputs["B"], lowered.outputs["B"])
    assert direct.script == lowered.script
    assert direct.sectors == lowered.sectors


def test_batches_do_not_change_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_layout_ext.simulate.compile import kernel

    A = kernels.random((128, 128))
    one = simulate(kernels.transpose(128), A)
    monkeypatch.setattr(kernel, "_BATCH_LANES", 300)
    many = simulate(kernels.transpose(128), A)
    np.testing.assert_array_equal(one.outputs["B"], many.outputs["B"])
    assert str(one) == str(many)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ((), "A is an input"),
        ((np.zeros((64, 63), "float32"),), r"shape \(64, 63\)"),
        ((np.zeros(64, "float32"),), r"shape \(64,\)"),
        ((np.zeros((64, 64)),), "type float64"),
        ((np.zeros((64, 64), "float32"), None, None), "takes 2 arguments"),
        ((3,), "type int64"),
    ],
)
def test_arguments_that_do_not_fit(arrays: Any, text: str) -> None:
    with pytest.raises(SimulationError, match=text) as error:
        simulate(kernels.transpose(64), *arrays)
    assert str(error.value).endswith(".")


def test_conflicting_extents_are_named() -> None:
    with pytest.raises(SimulationError, match="n = 6, but another argument makes it 5"):
        simulate(simulated.dynamic, kernels.random((5, 32)), kernels.random((6, 32)))


def test_program_without_a_thread_is_refused() -> None:
    with pytest.raises(TargetError, match="binds no GPU thread"):
        simulate(simulated.serial, INTS)


def test_sample_of_no_block_is_refused() -> None:
    with pytest.raises(SimulationError, match="grid_sample, in blocks, must be at least 1, not 0"):
        simulate(simulated.accumulate, INTS, INTS, grid_sample=0)


def test_inputs_are_not_changed() -> None:
    start = INTS.copy()
    simulate(simulated.accumulate, INTS, start)
    np.testing.assert_array_equal(start, INTS)


def test_quiet_when_short(capfd: pytest.CaptureFixture[str]) -> None:
    simulate(simulated.accumulate, INTS, INTS)
    assert capfd.readouterr() == ("", "")


def test_progress_lines_when_long(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvm_layout_ext.simulate import run as progress
    from tvm_layout_ext.simulate.compile import kernel

    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(kernel, "_BATCH_LANES", 256)
    simulate(kernels.transpose(64), kernels.random((64, 64)))
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [
        f"simulate main_kernel: {done} of 4 blocks" for done in (1, 2, 3, 4)
    ]
    simulate(kernels.transpose(64), kernels.random((64, 64)), progress=False)
    assert capfd.readouterr().err == ""


def test_te_schedule_takes_its_tensors() -> None:
    A = te.placeholder((8, 64), "float32", name="A")
    B = te.compute((8, 64), lambda i, j: A[i, j] + 1, name="B")
    schedule = tlx.create_schedule(B.op)
    schedule[B].bind(B.op.axis[0], te.thread_axis("blockIdx.x"))
    schedule[B].bind(B.op.axis[1], te.thread_axis("threadIdx.x"))
    values = kernels.random((8, 64))
    gives(schedule, values, args=[A, B], B=values + 1)


def test_strided_argument() -> None:
    whole = kernels.random((16, 80))
    report = gives(simulated.strided, whole[:, 3:67], B=whole[:, 3:67] * 2)
    # The copy on the device starts aligned, and rows are 320 bytes apart: whole sectors.
    (load,) = [a for a in report.accesses if a.kind == "load"]
    assert (load.requests, load.sectors) == (32, 128)


def test_read_only_cache_loads() -> None:
    A = kernels.random((64,))
    report = gives(simulated.through_ldg, A, B=A)
    assert [a.buffer for a in report.accesses if a.kind == "load"] == ["A"]


def test_launches_in_a_host_loop() -> None:
    A = kernels.random((4, 32))
    report = gives(simulated.host_loop, A, B=A + 1)
    assert report.blocks == (4, 4)


def test_views_of_one_arena_with_types_of_different_width() -> None:
    A = kernels.random((128,), "float16")
    report = simulate(simulated.mixed_arena_in_order, A)
    assert report.hazards == []
    wanted = A[::-1].astype("float64")[np.arange(128) ^ 5]
    np.testing.assert_array_equal(report.outputs["B"], wanted)
    assert {a.buffer for a in report.accesses if a.scope == "shared.dyn"} == {"H", "D"}
    # The two share bytes: 128 doubles hold both.
    assert report.shared_bytes == 128 * 8


@pytest.mark.parametrize(("which", "kinds"), [(0, {"race"}), (1, set()), (2, {"race"})])
def test_races_in_an_arena_of_mixed_types(which: int, kinds: set[str]) -> None:
    # The second of TVM's barriers only repeats the explicit one before it.
    program = kernels.without(device_program(simulated.mixed_arena_in_order), kernels.SYNC, which)
    report = simulate(program, kernels.random((128,), "float16"))
    assert {hazard.kind for hazard in report.hazards} == kinds


def test_barriers_that_tvm_plans_before_it_merges_buffers_are_not_enough() -> None:
    # F takes H's bytes, and nothing separates the last read of H from the first write of F.
    report = simulate(simulated.mixed_arena, kernels.random((128,), "float16"))
    assert [(hazard.kind, hazard.buffer) for hazard in report.hazards] == [
        ("race", "F"),
        ("race", "D"),
    ]
    assert {site.buffer for site in report.hazards[0].sites} == {"F", "H"}


def test_votes_and_shuffles() -> None:
    report = simulate(simulated.votes, INTS)
    odd = (INTS % 2).reshape(2, 32).astype(np.uint64)
    ballots = (odd << np.arange(32, dtype=np.uint64)).sum(axis=1)
    np.testing.assert_array_equal(report.outputs["B"], np.repeat(ballots, 32))
    np.testing.assert_array_equal(report.outputs["C"], INTS[np.arange(64) ^ 3])
