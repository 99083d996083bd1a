"""The simulated asynchronous units: right kernels give right results, changed ones are found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tvm import tirx

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.kernels import changed
from tvm_layout_ext import SimulationError
from tvm_layout_ext.gpu.warpgroups import WARPGROUP_THREADS
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.layout import NVMMADistributedLayout, NVMMASharedLayout
from tvm_layout_ext.simulate.warpgroups.product import DescribedTile, spread
from tvm_layout_ext.simulate.warpgroups.tensor_map import swizzled

SHAPE = (128, 128, 320)


@pytest.mark.parametrize("row_bytes", [128, 64])
def test_the_swizzle_of_maps_and_descriptors_is_that_of_the_layout(row_bytes: int) -> None:
    wide = row_bytes // 2
    linear = NVMMASharedLayout(row_bytes, 16).to_linear([64, wide])
    elements = swizzled(np.arange(64 * wide) * 2, row_bytes) // 2
    for at, place in enumerate(elements):
        assert linear.apply(offset=int(place), block=0) == {"dim0": at // wide, "dim1": at % wide}


def test_sums_lie_in_registers_as_the_layout_says() -> None:
    linear = NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]).to_linear([64, 64])
    held = spread(np.arange(64 * 64).reshape(64, 64))
    for register in range(32):
        for thread in range(0, WARPGROUP_THREADS, 7):
            at = linear.apply(register=register, lane=thread % 32, warp=thread // 32, block=0)
            assert held[register, thread] == at["dim0"] * 64 + at["dim1"]


@pytest.mark.parametrize("k_major", [True, False])
def test_a_descriptor_reads_what_a_box_of_the_layout_holds(k_major: bool) -> None:
    # 64 x 64 of 16 bits, either way round: element (i, j) of memory, i counting rows of 128 bytes.
    tile = DescribedTile(0, 8192, 1024, 64, 64, k_major)
    i, j = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    box = swizzled(i * 128 + j * 2, 128)
    assert np.array_equal(tile.addresses(2), box if k_major else box.T)


def mutated(
    name: str, change: Callable[[Any], Any], which: int | None = None, stages: int = 3
) -> Any:
    given = w.program(w.schedule(w.product(SHAPE), stages=stages))
    return changed(given, name, change, which)


def run(given: Any) -> tuple[Any, Any]:
    a, b, want = w.operands(SHAPE)
    report = tlx.simulate(given, a, b, progress=False)
    return report, want


def _flipped(call: Any) -> Any:
    return w.with_argument(call, 1, 1 - call.args[1])


def _expecting(count: int) -> Callable[[Any], Any]:
    return lambda call: w.with_argument(call, 1, tirx.const(count, "uint32"))


def _left_out(call: Any) -> None:
    return None


DEADLOCKS: dict[str, tuple[str, Callable[[Any], Any], int | None, str]] = {
    "consumers wait for the other parity": (
        ops.CUDA_MBARRIER_WAIT, _flipped, 1, r"Deadlock: .* wait at line \d+ for parity 0 of empty",
    ),
    "the producer waits for the other parity": (
        ops.CUDA_MBARRIER_WAIT, _flipped, 0, r"Deadlock: .* parity 0 of empty\[0\], phase 0",
    ),
    "more bytes are expected than come": (
        ops.PTX_MBARRIER_ARRIVE_EXPECT_TX, _expecting(40960), None, r"lacks 8,192 bytes",
    ),
    "fewer bytes are expected than come": (
        ops.PTX_MBARRIER_ARRIVE_EXPECT_TX, _expecting(24576), None, r"lacks -8,192 bytes",
    ),
    "the producer does not wait": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 0, r"full\[0\], phase 2 of which lacks 1 of 1 arrivals",
    ),
    "consumers do not wait": (
        ops.CUDA_MBARRIER_WAIT, _left_out, 1, r"Before that: .* reads tiles\[0\]",
    ),
    "nobody gives stages back": (
        ops.PTX_MBARRIER_ARRIVE_NOCOUNT, _left_out, 0, r"empty\[0\], phase 0 .* 2 of 2 arrivals",
    ),
    "a third arrival is counted on": (
        ops.PTX_MBARRIER_INIT,
        lambda call: w.with_argument(call, 1, call.args[1] + tirx.const(1, "uint32")), 1,
        r"lacks 1 of 3 arrivals",
    ),
    "registers over the pool": (
        ops.PTX_SETMAXNREG, lambda call: w.with_argument(call, 0, tirx.const(240, "int32")), 1,
        r"for 240 registers a thread; the warpgroups of the block have 168, 168, 40, and 504",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DEADLOCKS)
def test_threads_that_wait_forever_are_told_with_what_they_wait_for(case: str) -> None:
    name, change, which, text = DEADLOCKS[case]
    with pytest.raises(SimulationError, match=text):
        run(mutated(name, change, which))


HAZARDS: dict[str, tuple[str, Callable[[Any], Any], int | None, str]] = {
    "a stage is given back before its product is done": (
        ops.PTX_WGMMA_WAIT_GROUP, lambda call: w.with_argument(call, 0, tirx.const(2, "int32")), 0,
        "overwrites what a wgmma may still read",
    ),
    "sums are read before they are there": (
        ops.PTX_WGMMA_WAIT_GROUP, _left_out, 1,
        "stores in bulk sums of a wgmma that was not waited for",
    ),
    "results are not made known to TMA": (
        ops.PTX_FENCE_PROXY, _left_out, 1, "no fence.proxy.async made known",
    ),
    "results are stored before all have written them": (
        ops.PTX_BAR_SYNC_COUNT, _left_out, 1, "reads tiles",
    ),
    "a chunk is written again before it is stored": (
        ops.PTX_CP_ASYNC_BULK_WAIT_GROUP, _left_out, None, "ends before its bulk store has read",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAZARDS)
def test_a_missing_order_is_a_hazard(case: str) -> None:
    name, change, which, text = HAZARDS[case]
    report, _ = run(mutated(name, change, which))
    assert any(text in hazard.message for hazard in report.hazards), report.hazards


#: Of two blocks each copies half of B for both, and gives stages back to both.
CLUSTER_SHAPE = (256, 128, 320)


Changes = Sequence[tuple[str, Callable[[Any], Any], int | None]]


def in_a_cluster(changes: Changes, given: Any = None) -> Any:
    given = given or w.program(w.schedule(w.product(CLUSTER_SHAPE), cluster=(2, 1)))
    for name, change, which in changes:
        given = changed(given, name, change, which)
    a, b, _ = w.operands(CLUSTER_SHAPE)
    return tlx.simulate(given, a, b, progress=False)


def _with(position: int, value: int, dtype: str) -> Callable[[Any], Any]:
    return lambda call: w.with_argument(call, position, tirx.const(value, dtype))


_BARRIER_OF_CLUSTER = (ops.PTX_BARRIER_CLUSTER_ARRIVE, ops.PTX_BARRIER_CLUSTER_WAIT)
CLUSTERS: dict[str, tuple[Changes, str]] = {
    "only the consumers of a block are counted": (
        [(ops.PTX_MBARRIER_INIT, _with(1, 2, "uint32"), 1)],
        r"Deadlock: 2 warps, .* wait at line \d+ for parity 0 of empty\[0\], phase 2",
    ),
    "all stages are given back to the first block": (
        [(ops.PTX_MAPA, _with(2, 0, "uint32"), None)],
        r"Deadlock: 2 warps, .* empty\[0\], phase 2 of which lacks 4 of 4 arrivals",
    ),
    "a stage is given back to no block of the cluster": (
        [(ops.PTX_MAPA, _with(2, 2, "uint32"), None)],
        "reaches for block 2 of a cluster of 2",
    ),
    "halves are copied to the first block alone": (
        [(ops.PTX_CP_ASYNC_BULK_TENSOR_G2S_CLUSTER, _with(5, 1, "uint16"), 1)],
        r"full\[0\], phase 0 of which lacks 16,384 bytes",
    ),
    "the start does not wait for the other block": (
        [(name, _left_out, 0) for name in _BARRIER_OF_CLUSTER],
        "of another block at line .* nothing orders that after its init",
    ),
    "threads wait for a cluster at which they have not arrived": (
        [(ops.PTX_BARRIER_CLUSTER_ARRIVE, _left_out, 1)],
        r"barrier.cluster.wait at line \d+ without barrier.cluster.arrive before it",
    ),
}


@pytest.mark.parametrize("case", CLUSTERS)
def test_blocks_of_a_cluster_that_miscount_are_told(case: str) -> None:
    changes, text = CLUSTERS[case]
    with pytest.raises(SimulationError, match=text):
        in_a_cluster(changes)


def test_a_block_that_may_have_ended_is_told() -> None:
    report = in_a_cluster([(name, _left_out, 1) for name in _BARRIER_OF_CLUSTER])
    assert "changes shared memory of a block that may have ended" in report.hazards[0].message


def test_a_stage_that_the_other_block_still_reads_is_told() -> None:
    given = w.program(w.schedule(w.product(CLUSTER_SHAPE), cluster=(2, 1)))
    (kernel,) = given.kernels.values()
    ranks = (one.node for one in nodes_in(kernel.body, tirx.AttrStmt))
    rank = next(one.var for one in ranks if str(one.thread_tag) == "clusterCtaIdx.x")
    report = in_a_cluster(
        [(ops.PTX_MAPA, lambda call: w.with_argument(call, 2, tirx.Cast("uint32", rank)), None)],
        given,
    )
    assert any("overwrites what a wgmma may still read" in one.message for one in report.hazards)


@pytest.mark.parametrize(
    ("which", "text"),
    [
        ([0, 2], "overwrites what a wgmma may still read"),
        ([1, 3], "reads tiles"),
    ],
)
def test_sums_that_no_barrier_orders_are_told(which: list[int], text: str) -> None:
    # Both roles have two barriers of the cluster: of the copies first, then of the products.
    given = w.program(w.schedule(w.product(CLUSTER_SHAPE), slices=2, stages=4))
    for number in reversed(which):
        for name in _BARRIER_OF_CLUSTER:
            given = changed(given, name, _left_out, number)
    report = in_a_cluster([], given)
    assert any(text in one.message for one in report.hazards), report.hazards


def test_a_wrong_descriptor_gives_wrong_sums() -> None:
    def change(call: Any) -> Any:
        return w.with_argument(call, 64, call.args[64] + tirx.const(2, "uint64"))

    report, want = run(mutated(ops.PTX_WGMMA_F16_SS, change, 0))
    assert np.abs(report.outputs["C"].astype(np.float64) - want).max() > 1
