"""Attention in one kernel: what it computes, what it visits, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.attended import Heads, error
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.kernels import changed
from tests.sampling import beside
from tvm_layout_ext import ScheduleError, SimulationError, decisions
from tvm_layout_ext.analysis.attention import LOG2_E, read_attention
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.annotations import ATTENTION
from tvm_layout_ext.ir.queries import loads_in
from tvm_layout_ext.transform.attention import lower_attention
from tvm_layout_ext.transform.attention.fit import fit_attention
from tvm_layout_ext.transform.attention.softmax import HIDDEN, LOWEST
from tvm_layout_ext.tune.space.operator import find_operator


def causal(i: Any, j: Any) -> Any:
    return j <= i


def recent(i: Any, j: Any) -> Any:
    return i - j < 50


CASES = {
    "one tile": (Heads(), {}),
    "ragged rows and keys of two warpgroups": (Heads(2, 2, 100, 200), {"keys": 64, "consumers": 2}),
    "three warpgroups": (Heads(1, 1, 150, 130), {"consumers": 3}),
    "shared heads, causal": (Heads(4, 2, 130, 130, seen=(causal,)), {"keys": 64, "consumers": 2}),
    "more keys than rows, causal": (
        Heads(1, 1, 70, 200, seen=(lambda i, j: j <= i + 130,)), {"keys": 64},
    ),
    "one row, shared heads": (Heads(4, 2, 1, 200, order="bsh"), {"keys": 64}),
    "one row, shared heads, and a bias": (Heads(6, 2, 1, 130, bias=True, seen=(
        lambda i, j: j <= i + 100,)), {"keys": 64}),
    "one row, keys in parts": (Heads(4, 2, 1, 64 * 7 - 3), {"keys": 64}),
    "a few rows, keys in parts": (
        Heads(2, 2, 5, 64 * 5, seen=(lambda i, j: j <= 200,)), {"keys": 64, "consumers": 1},
    ),
    "one row, heads side by side": (Heads(4, 1, 1, 130, order="merged"), {"keys": 64}),
    "one row, heads of their own": (Heads(2, 2, 1, 130), {"keys": 64}),
    "a window": (Heads(1, 1, 200, 200, seen=(causal, recent)), {"keys": 64}),
    "what follows a row": (Heads(1, 1, 64, 200, seen=(lambda i, j: i < j,)), {"keys": 64}),
    "rows, heads, columns": (Heads(3, 1, 100, 72, order="bsh", dtype="bfloat16"), {"keys": 64}),
    "a bias": (Heads(1, 1, 70, 100, bias=True, seen=(causal,)), {"keys": 64}),
    "a bias by TMA": (
        Heads(2, 1, 130, 200, bias=True, seen=(causal,)), {"keys": 80, "consumers": 2},
    ),
    "a mask from memory": (Heads(1, 1, 64, 200, shown=True), {"keys": 64}),
    "heads of 96": (Heads(1, 1, 70, 100, 96, 96), {"keys": 64}),
    "heads of 192 and 128": (Heads(1, 1, 64, 200, 192, 128), {}),
    "heads of 32": (Heads(2, 1, 49, 49, 32, 32), {}),
    "heads of 40, rows and heads": (Heads(2, 2, 70, 77, 40, 40, order="bsh"), {}),
    "heads of 72": (Heads(1, 1, 100, 130, 72, 72, dtype="bfloat16"), {"keys": 64}),
    "heads of 40, in parts": (Heads(2, 2, 5, 64 * 5, 40, 40), {"keys": 64, "consumers": 1}),
    "heads of 24 and 104": (Heads(1, 1, 64, 100, 24, 104), {}),
    "heads of 48 in one dim": (Heads(3, 3, 64, 64, 48, 48, order="merged"), {}),
    "heads of 160": (Heads(1, 1, 64, 100, 160, 160), {}),
    "heads of 256": (Heads(1, 1, 100, 140, 256, 256), {}),
    "three stages": (Heads(1, 1, 64, 330), {"keys": 64, "stages": 3}),
    "capped, causal": (Heads(4, 2, 70, 100, cap=1.0, seen=(causal,)), {"keys": 64}),
    "capped, a window, bfloat16": (
        Heads(2, 1, 150, 150, 128, 128, dtype="bfloat16", cap=1.0, seen=(causal, recent)),
        {"keys": 64},
    ),
    "a factor a head, capped, a bias": (
        Heads(2, 1, 130, 200, cap=1.5, factors=True, bias=True), {"keys": 80, "consumers": 2},
    ),
    "a factor a head, a mask from memory": (Heads(3, 1, 64, 130, factors=True, shown=True), {}),
    "a slope a head, causal": (Heads(2, 1, 70, 100, slopes=True, seen=(causal,)), {"keys": 64}),
    "sinks": (Heads(3, 1, 70, 100, sinks=True, dtype="bfloat16"), {"keys": 64}),
    "sinks, a window": (
        Heads(4, 2, 200, 200, sinks=True, seen=(causal, recent)), {"keys": 64, "consumers": 2},
    ),
    "one row, sinks and slopes, keys in parts": (
        Heads(4, 2, 1, 64 * 7 - 3, sinks=True, slopes=True, order="bsh"), {"keys": 64},
    ),
}  # fmt: skip


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_the_result_is_that_of_float64(name: str) -> None:
    case, wished = CASES[name]
    off, hazards = error(case, case.schedule(**wished))
    assert hazards == []
    # Weights and results are rounded once each.
    assert off < (1.2e-2 if case.dtype == "bfloat16" else 2e-3)


TURNS = {
    "2 heads, parts": (Heads(2, 1, 130, 64 * 5), (64, 2, 2, 3, 1, 0)),
    "parts, rows by TMA": (Heads(3, 3, 200, 64 * 4 - 5, order="bsh"), (64, 2, 3, 2, 4, 0)),
    "parts, rows by threads": (Heads(1, 1, 100, 172, 96, 40, bias=True), (64, 2, 1, 2, 1, 0)),
    "parts of few rows": (
        Heads(5, 5, 3, 200, seen=(lambda i, j: j <= 150,)), (64, 2, 1, 2, 3, 0),
    ),
    "two blocks in turns": (Heads(3, 3, 130, 130), (64, 2, 1, 1, 0, 2)),
    "two blocks in turns, stages of three": (Heads(3, 1, 130, 200), (64, 3, 2, 1, 0, 2)),
    "turns of three warpgroups, causal": (
        Heads(4, 4, 200, 260, seen=(causal,)), (64, 2, 3, 1, 0, 3),
    ),
    "turns of one tile of keys": (Heads(3, 3, 70, 60, order="bsh"), (64, 2, 2, 1, 0, 2)),
    "turns, rows by threads": (Heads(5, 1, 64, 130, 40, 72), (64, 2, 1, 1, 0, 2)),
    "turns of unlike numbers": (Heads(5, 5, 130, 64 * 3), (64, 2, 2, 1, 0, 4)),
    "more tiles than one turn of seven": (
        Heads(2, 2, 320, 64, seen=(causal,)), (64, 2, 1, 1, 0, 7),
    ),
    "a bias in turns": (Heads(3, 3, 130, 200, bias=True), (64, 2, 2, 1, 0, 2)),
    "a bias in turns of three warpgroups": (
        Heads(4, 4, 200, 136, bias=True, seen=(causal,)), (64, 2, 3, 1, 0, 3),
    ),
    "parts, sinks": (Heads(2, 1, 130, 64 * 5, sinks=True, cap=1.0), (64, 2, 2, 3, 1, 0)),
    "turns of three warpgroups, sinks": (
        Heads(4, 4, 200, 136, sinks=True, factors=True, seen=(causal,)), (64, 2, 3, 1, 0, 3),
    ),
    "a window in turns": (Heads(2, 2, 200, 200, seen=(causal, recent)), (64, 2, 2, 1, 0, 3)),
}  # fmt: skip


def planned(case: Heads, *numbers: int) -> s_tir.Schedule:
    """A schedule by a plan of one's own."""
    sch = case.schedule(keys=64)
    block = sch.get_sblock("mean")
    sch.unannotate(block, ATTENTION)
    sch.annotate(block, ATTENTION, numbers)
    return sch


#: Of which others are kinds.
ALWAYS = ("2 heads, parts", "turns of three warpgroups, causal")


@pytest.mark.costly
@pytest.mark.parametrize("name", [one if one in ALWAYS else beside(one) for one in TURNS])
def test_blocks_take_tiles_in_turns_and_share_keys(name: str) -> None:
    case, numbers = TURNS[name]
    off, hazards = error(case, planned(case, *numbers))
    assert hazards == []
    assert off < 2e-3


@pytest.mark.parametrize(
    ("shape", "causal", "shared", "resident"),
    [
        ((4, 16, 16, 2048, 2048, 64), False, (1, 0), 132),  # 5.3 rounds; ends of tiles weigh more.
        ((2, 10, 10, 4096, 4096, 64), False, (3, 396), 0),  # 440 tiles: 44 by three blocks each.
        ((8, 32, 32, 4096, 4096, 128), False, (1, 0), 132),  # One of 63 rounds.
        ((4, 16, 16, 2048, 2048, 64), True, (1, 0), 132),  # Short tiles are last anyway.
        ((8, 12, 12, 384, 384, 64), False, (1, 0), 132),  # A second kernel would take longer.
        ((1, 16, 16, 1024, 1024, 64), False, (1, 0), 0),
        ((1, 2, 2, 16, 4096, 64), False, (16, 0), 0),
        ((1, 16, 16, 1, 1024, 128), False, (8, 0), 0),  # A step of decoding: parts of a tile.
        ((2, 16, 16, 2048, 2048, 256), False, (1, 0), 0),  # No room for a second tile of Q.
    ],
)
def test_tiles_are_shared_or_taken_in_turns_where_that_is_worth_it(
    shape: tuple[int, ...], causal: bool, shared: tuple[int, int], resident: int
) -> None:
    operator = find_operator("attention_causal" if causal else "attention")
    func = operator.unscheduled(shape, "float16")["main"]
    plan = fit_attention(read_attention(func), architecture("sm_90a"))
    assert (plan.splits, plan.whole) == shared
    tiles = shape[0] * shape[1] * plan.tiles
    assert plan.parts == plan.whole + (tiles - plan.whole) * plan.splits
    assert plan.resident == resident


@pytest.mark.parametrize(
    ("shape", "group", "alternates"),
    [
        ((16, 16, 16, 512, 512, 128), 1, True),  # Four tiles a head: 33 heads fill a turn.
        ((8, 32, 32, 4096, 4096, 128), 1, True),
        ((8, 32, 8, 4096, 4096, 128), 16, True),  # Four heads share K and V.
        ((4, 16, 16, 2048, 2048, 64), 16, True),
    ],
)
def test_heads_are_side_by_side_where_their_blocks_end_together(
    shape: tuple[int, ...], group: int, alternates: bool
) -> None:
    func = find_operator("attention_causal").unscheduled(shape, "float16")["main"]
    plan = fit_attention(read_attention(func), architecture("sm_90a"))
    assert (plan.group, plan.alternates) == (group, alternates)
    even = find_operator("attention").unscheduled(shape, "float16")["main"]
    plan = fit_attention(read_attention(even), architecture("sm_90a"))
    assert (plan.group, plan.alternates) == (1, False)


def test_blocks_either_share_keys_or_take_turns() -> None:
    sch = planned(Heads(3, 3, 130, 64 * 4), 64, 2, 2, 2, 3, 2)
    with pytest.raises(ScheduleError, match="2 blocks take tiles in turns, and 2 share the keys"):
        tlx.lower(sch.mod, target=tlx.cuda_target("sm_90a"))


def test_large_scores_neither_overflow_nor_lose_rows() -> None:
    case = Heads(1, 1, 64, 200)
    off, hazards = error(case, case.schedule(keys=64), scale=30.0)
    assert hazards == []
    assert off < 0.1


def test_rows_behind_those_in_use_are_zero() -> None:
    """A cache may hold anything there, numbers or not."""
    case = Heads(1, 1, 64, 100, spare=60)
    arrays = case.arrays()
    for one in arrays[1:]:
        one[:, :, 100:] = float("nan")
    report = tlx.simulate(case.schedule(keys=64), *arrays, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    assert abs(found.astype("float64") - case.exact(*arrays)).max() < 2e-3


@pytest.mark.costly
@pytest.mark.parametrize("resident", [0, 3])
def test_rows_of_no_numbers_stop_nobody(resident: int) -> None:
    """What asks for sums of weights goes on, whatever these are."""
    case = Heads(3, 3, 130, 64 * 4)
    arrays = case.arrays()
    arrays[0][0, 1, 0] = float("nan")
    sch = planned(case, 64, 2, 2, 1, 0, resident)
    report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    want = case.exact(*arrays)
    assert np.isnan(found[0, 1, 0]).all()
    assert np.isnan(found).sum() == 64
    np.testing.assert_allclose(found, want, atol=2e-3)


def windowed(size: int, ahead: int) -> Heads:
    """A tile's first keys are none that the rows of its second warpgroup see."""
    seen = (lambda i, j: i - j <= 64, lambda i, j: j - i <= ahead)
    return Heads(2, 2, size, size, seen=seen)


@pytest.mark.costly
@pytest.mark.parametrize("ahead", [0, 64])
def test_hidden_keys_weigh_nothing_in_a_window(ahead: int) -> None:
    case = windowed(192, ahead)
    off, hazards = error(case, case.schedule(consumers=2))
    assert hazards == []
    assert off < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("ahead", [0, 64])
def test_a_window_on_a_gpu(ahead: int) -> None:
    case = windowed(512, ahead)
    built = tlx.build(case.schedule(consumers=2), target="cuda")
    arrays = case.arrays()
    out = np.full((1, 2, 512, 64), np.nan, "float16")
    given = [tvm.runtime.tensor(one, tvm.cuda()) for one in (*arrays, out)]
    built["main"](*given)
    np.testing.assert_allclose(given[-1].numpy(), case.exact(*arrays), atol=2e-3)


@pytest.mark.costly
@pytest.mark.parametrize("highest", [60000.0, -60000.0, float("-inf")])
def test_sinks_far_from_all_scores_leave_nothing_or_all(highest: float) -> None:
    case = Heads(2, 1, 70, 130, sinks=True)
    arrays = case.arrays()
    arrays[-1][:] = highest
    report = tlx.simulate(case.schedule(keys=64), *arrays, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    np.testing.assert_allclose(found, case.exact(*arrays), atol=2e-3)


def test_a_cap_and_a_sink_are_read() -> None:
    case = Heads(2, 1, 64, 64, sinks=True, cap=2.0)
    scores = read_attention(case.func()).scores
    assert scores.curve is not None
    assert "tanh" in str(scores.curve.value)
    assert scores.scale == pytest.approx(2.0 * LOG2_E)
    assert [str(load.source.name) for load in loads_in(scores.sink)] == ["sinks"]
    kernels = w.program(case.schedule(keys=64)).kernels
    assert len(kernels) == 1


def _positive(call: Any) -> Any:
    (x,) = call.args
    zero = tirx.const(0.0, "float32")
    return tirx.tanh(tirx.if_then_else(x > zero, x, zero)) if call.op.name == "tirx.tanh" else call


def _lower_sink(call: Any) -> Any:
    is_sink = call.op.name == ops.EXP and "sinks" in str(call.args[0])
    return tirx.exp(call.args[0] - tirx.const(1.0, "float32")) if is_sink else call


@pytest.mark.parametrize(
    ("case", "change", "said"),
    [
        (Heads(cap=2.0), _positive, "which is no function of floats"),
        (Heads(sinks=True), _lower_sink, "beside them, which is no sink"),
    ],
)
def test_other_functions_and_other_sums_are_refused(case: Heads, change: Any, said: str) -> None:
    func = case.func()
    changed = tvm_ffi.structural_map(func.body, [(tvm.ir.Call, change)], order="post")
    with pytest.raises(ScheduleError, match=said):
        read_attention(func.with_body(changed))


UNSEEN = {
    "first rows": (Heads(1, 1, 130, 200, seen=(lambda i, j: j <= i - 70,)), range(70)),
    "last rows": (Heads(2, 1, 100, 128, seen=(lambda i, j: j > i + 60,)), range(67, 100)),
    "a row, keys in parts": (Heads(2, 2, 1, 64 * 7, shown=True), range(1)),
    "a row, sinks": (Heads(2, 2, 1, 64 * 7, shown=True, sinks=True), range(1)),
}


@pytest.mark.costly
@pytest.mark.parametrize("name", UNSEEN)
def test_rows_that_see_no_key_are_zero(name: str) -> None:
    case, rows = UNSEEN[name]
    arrays = case.arrays()
    if case.shown:
        arrays[3][:] = False
    report = tlx.simulate(case.schedule(keys=64), *arrays, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    want = case.exact(*arrays)
    want[:, :, list(rows)] = 0
    np.testing.assert_allclose(found, want, atol=2e-3)


@pytest.mark.parametrize("factor", [1e-3, 0.0902, 0.18, 1.4427, 30.7])
def test_hidden_keys_weigh_nothing_where_a_product_is_not_rounded(factor: float) -> None:
    """nvcc makes one operation of ``score * factor - shift``, whose product is exact."""
    factor = float(np.float32(factor))
    shift = float(np.float32(LOWEST * factor))
    assert HIDDEN * factor - shift < -1e30


def test_tiles_behind_a_bound_are_not_visited() -> None:
    """Rows before a tile's keys would read values that are not numbers."""
    case = Heads(1, 1, 128, 256, seen=(causal,))
    arrays = case.arrays()
    arrays[1][:, :, 128:] = arrays[2][:, :, 128:] = float("nan")
    report = tlx.simulate(case.schedule(keys=64), *arrays, target=w.SM90A, progress=False)
    clean = case.arrays()
    (found,) = report.outputs.values()
    assert abs(found.astype("float64") - case.exact(*clean)).max() < 2e-3


def test_the_kernel_is_made_of_what_the_decision_says() -> None:
    case = Heads(2, 1, 256, 256, 128, 128)
    with decisions.collect() as made:
        kernels = w.program(case.schedule(consumers=2)).kernels
    told = next(str(one) for one in made if one.maker == "LowerAttention")
    assert "128 rows by tiles of 128 keys, 2 stages of K and V by TMA, 2 warpgroups" in told
    assert "4 blocks, results stored by TMA" in told
    (kernel,) = kernels.values()
    text = kernel.script()
    # Scores of the first tile and of those in the loop, their means and those of the last one.
    assert text.count("wgmma_f16_ss") == 2 * 8 or text.count("m64n128k16") == 4 * 8
    assert "tvm_storage_sync" not in text


def _left_out(call: Any) -> None:
    return None


def _waiting(count: int) -> Any:
    return lambda call: w.with_argument(call, 0, tirx.const(count, "int32"))


MUTATIONS: dict[str, tuple[str, Any, int, str]] = {
    "weights before their scores": (
        ops.PTX_WGMMA_WAIT_GROUP, _waiting(2), 1, "of a wgmma that was not waited for",
    ),
    "means changed while they are added up": (
        ops.PTX_WGMMA_WAIT_GROUP, _waiting(1), 2, "overwrites what a wgmma may still read",
    ),
    "K given back by nobody": (
        ops.PTX_MBARRIER_ARRIVE_NOCOUNT, _left_out, 0, r"Deadlock: .*k_empty",
    ),
    "V given back by nobody": (
        ops.PTX_MBARRIER_ARRIVE_NOCOUNT, _left_out, 2, r"Deadlock: .*v_empty",
    ),
    "fewer bytes of Q than come": (
        ops.PTX_MBARRIER_ARRIVE_EXPECT_TX,
        lambda call: w.with_argument(call, 1, tirx.const(4096, "uint32")), 0, "q_full",
    ),
    "results not made known to TMA": (
        ops.PTX_FENCE_PROXY, _left_out, 1, "no fence.proxy.async made known",
    ),
    "results stored before all are there": (ops.PTX_BAR_SYNC_COUNT, _left_out, 0, "reads tiles"),
}  # fmt: skip


TURNED: dict[str, tuple[str, Any, int, str]] = {
    "Q given back by nobody": (
        ops.PTX_MBARRIER_ARRIVE_NOCOUNT, _left_out, 5, r"Deadlock: .*q_empty",
    ),
    "Q not awaited, but K, which comes later": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 3, "wgmma reads tiles .* no wait at the mbarrier",
    ),
    "V not awaited, but K of the next step": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 6, "wgmma reads tiles .* no wait at the mbarrier",
    ),
    "the next tile's Q not awaited": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 7, "wgmma reads tiles .* no wait at the mbarrier",
    ),
    "the next tile's K not awaited": (ops.CUDA_MBARRIER_WAIT, _left_out, 8, "reads tiles"),
    "Q taken before it is given back": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 0, "tiles|q_full",
    ),
    "a turn that nobody passes on": (ops.PTX_BAR_ARRIVE, _left_out, 1, "Deadlock"),
}  # fmt: skip


@pytest.mark.parametrize("name", TURNED)
def test_a_broken_turn_is_found(name: str) -> None:
    call, change, which, text = TURNED[name]
    case = Heads(4, 4, 192, 128)
    broken = changed(w.program(planned(case, 64, 2, 3, 1, 0, 1)), call, change, which)
    try:
        _, hazards = error(case, broken)
        told = " ".join(one.message for one in hazards)
    except SimulationError as stopped:
        told = str(stopped)
    assert re.search(text, told, re.DOTALL), told


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_protocol_is_found(name: str) -> None:
    call, change, which, text = MUTATIONS[name]
    case = Heads(1, 1, 128, 64 * 6)
    whole = case.schedule(keys=64, stages=2, consumers=2)
    broken = changed(w.program(whole), call, change, which)
    try:
        _, hazards = error(case, broken)
        told = " ".join(one.message for one in hazards)
    except SimulationError as stopped:
        told = str(stopped)
    assert re.search(text, told, re.DOTALL), told


def refusal(case: Heads, **wished: int) -> str:
    with pytest.raises(ScheduleError) as caught:
        case.schedule(**wished)
    return str(caught.value)


def test_what_the_kernel_cannot_be_is_refused_in_a_sentence() -> None:
    assert "36 columns of float16; multiples of 8" in refusal(Heads(depth=36, width=36))
    merged = refusal(Heads(2, 2, depth=40, width=40, order="merged"))
    assert "heads of 40 columns, no multiple of 16, need a dim of their own" in merged
    assert "bytes of shared memory; sm_90a has" in refusal(
        Heads(1, 1, 128, 128, 128, 128), stages=6
    )
    assert "would hold 260 numbers" in refusal(Heads(1, 1, 128, 128, 256, 256), keys=176)
    assert "4 warpgroups cannot multiply; 1 to 3 can" in refusal(Heads(), consumers=4)
    sch = s_tir.Schedule(Heads().func())
    with tlx.cuda_target("sm_80"), pytest.raises(ScheduleError, match="instruction of sm_90a"):
        sch.fuse_attention("mean")
    with w.SM90A, pytest.raises(ScheduleError, match="Block top is none that multiplies"):
        sch.fuse_attention("top")


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("case", "consumers"),
    [
        (Heads(32, 32, 1024, 1024, seen=(causal,)), 3),
        (Heads(64, 64, 1024, 1024), 3),
        (Heads(32, 32, 1024, 1024, 128, 128, seen=(causal,)), 2),
        (Heads(8, 8, 1024, 1024, 256, 256, dtype="bfloat16"), 2),
        (Heads(8, 4, 1024, 1024, 256, 256, dtype="bfloat16", cap=50.0, seen=(causal,)), 2),
        (Heads(32, 8, 1024, 1024, sinks=True, seen=(causal, recent)), 3),
        (Heads(32, 8, 1024, 1024, cap=50.0, slopes=True, seen=(causal,)), 2),
    ],
    ids=("64, causal", "64", "128", "256", "256, capped", "sinks", "slopes"),
)
def test_ptxas_keeps_everything_in_registers(case: Heads, consumers: int, tmp_path: Path) -> None:
    """No spill, and no warning that wgmma is serialised."""
    report = require_no_spills(cuda_text(case.schedule(consumers=consumers)), tmp_path)
    assert not re.search(r"C75\d\d|C7602", report)


def test_the_plan_shares_l2_among_neighbours() -> None:
    with decisions.collect():
        plan = s_tir.Schedule(replace(Heads(64, 64, 256, 4096), depth=128, width=128).func())
        with w.SM90A:
            found = plan.fuse_attention("mean")
    assert architecture("sm_90a").name == "sm_90a"
    # 2 MB of K and V a head, of which 16 fit into 32 MB.
    assert found.group == 16


def test_what_is_left_is_read_once_whatever_the_number_of_buffers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    variables = lower_attention.variables
    monkeypatch.setattr(
        lower_attention, "variables", lambda stmt: read.append(stmt) or variables(stmt)
    )
    tlx.lower(Heads().schedule().mod, target=tlx.cuda_target("sm_90a"))
    assert len(read) == 1


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        ((8, 12, 12, 384, 384, 64), (3, 128)),  # Two rounds of 192 rows, not three of 128.
        ((32, 12, 12, 197, 197, 64), (2, 112)),  # Six rounds of either; 197 keys are twice 112.
        ((1, 16, 16, 1024, 1024, 64), (2, 128)),  # One round of either.
        ((512, 3, 3, 49, 49, 32), (1, 64)),
        ((2, 8, 8, 4096, 77, 40), (2, 80)),  # Four rounds of 128 rows, not three of 192.
    ],
)
def test_tiles_take_the_fewest_rounds(shape: tuple[int, ...], chosen: tuple[int, int]) -> None:
    func = find_operator("attention").unscheduled(shape, "float16")["main"]
    plan = fit_attention(read_attention(func), architecture("sm_90a"))
    assert (plan.consumers, plan.keys) == chosen
