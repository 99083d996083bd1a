"""Asynchronous copies under way: who touches what they write, and who writes what they read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.programs import kernels
from tests.programs.pipelined import TILE, Stream
from tests.programs.running import gives, kinds
from tvm_layout_ext.build import DeviceProgram, device_program
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.simulate import Hazard, Report, simulate
from tvm_layout_ext.simulate.model.places import Versions

THREADS, TURNS, SIZE = 64, 4, 256
INPUT = np.arange(TURNS * SIZE, dtype="int32")
SYNC = "T.cuda.cta_sync()"
WAIT = 'T.ptx["cp.async.wait_all"]()'
COPY = (
    'T.ptx["cp.async.cg.shared.global"]'
    "(T.address_of(S[v * 4]), T.address_of(A[k * 256 + v * 4]), 16)"
)
OWN, OTHERS = "A[k * 256 + v * 4] = -1", "A[k * 256 + (63 - v) * 4] = -1"


def copies(*steps: str, copy: str = COPY) -> Any:
    """Two warps copy 1 KiB a turn of a loop, do the steps, and give every copy to its issuer."""
    lines = [
        "@T.prim_func(s_tir=True)",
        "def main(A: T.Buffer((1024,), 'int32'), D: T.Buffer((1024,), 'int32')):",
        "    S = T.sblock_alloc_buffer((256,), 'int32', scope='shared')",
        "    for j in T.thread_binding(64, 'threadIdx.x'):",
        "        with T.sblock('copy'):",
        "            v = T.axis.spatial(64, j)",
        "            T.reads(A[0:1024])",
        "            T.writes(A[0:1024], D[0:1024])",
        "            for k in range(4):",
        *(f"                {line}" for line in (copy, *steps)),
        "                for i in range(4):",
        "                    D[k * 256 + v * 4 + i] = S[v * 4 + i]",
        f"                {SYNC}",
    ]
    return tvm.script.from_source("\n".join(lines))


def run(*steps: str, copy: str = COPY) -> Report:
    return simulate(copies(*steps, copy=copy), INPUT, None)


@pytest.mark.parametrize(
    "steps",
    [(WAIT,), (WAIT, OWN), (WAIT, SYNC, OTHERS), (WAIT, OWN, SYNC, OTHERS)],
    ids=["never", "by its reader", "by others", "by both"],
)
def test_a_source_may_be_written_after_the_wait(steps: tuple[str, ...]) -> None:
    gives(copies(*steps), INPUT, None, D=INPUT)


@pytest.mark.parametrize("steps", [(OWN, WAIT), (OTHERS, WAIT), (SYNC, OTHERS, WAIT)])
def test_a_source_written_in_flight_is_a_hazard_and_the_copy_is_poison(
    steps: tuple[str, ...],
) -> None:
    report = run(*steps)
    (hazard,) = (h for h in report.hazards if h.kind == "async")
    assert (hazard.buffer, hazard.iteration, hazard.count) == ("A", (("k", 0),), TURNS * THREADS)
    assert len(hazard.threads) == len(hazard.sites) == 2
    assert "while an asynchronous copy from it, issued by thread" in hazard.message
    assert "in iteration k = 0, has not been waited for" in hazard.message
    (poison,) = (h for h in report.hazards if h.kind == "poison")
    # Of each thread's four elements one is written: only this is not the same at both ends.
    assert poison.count == TURNS * THREADS
    assert poison.iteration == (("k", 0), ("i", 0))
    assert "an asynchronous copy whose source was written" in poison.message
    mixed = report.outputs["D"].reshape(-1, 4)
    np.testing.assert_array_equal(mixed[:, 1:], INPUT.reshape(-1, 4)[:, 1:])


def test_a_source_rewritten_with_the_same_bits_is_no_poison() -> None:
    same = "A[k * 256 + v * 4] = k * 256 + v * 4"
    report = run(same, WAIT)
    assert kinds(report) == {"async"}
    np.testing.assert_array_equal(report.outputs["D"], INPUT)


def test_a_source_that_changes_back_is_still_poison() -> None:
    report = run(OWN, "A[k * 256 + v * 4] = k * 256 + v * 4", WAIT)
    assert kinds(report) == {"async", "poison"}


def test_a_store_to_where_a_copy_goes_is_a_hazard() -> None:
    report = run("S[v * 4] = 0", WAIT)
    assert kinds(report) == {"async"}
    assert "writes S[0] at" in report.hazards[0].message


def test_a_wait_orders_only_its_own_thread() -> None:
    assert kinds(run(WAIT, OTHERS)) == {"race"}


def test_a_barrier_before_the_wait_does_not_order_the_read() -> None:
    """The copy may read until the wait, which comes after the barrier."""
    report = run(SYNC, WAIT, OTHERS)
    assert kinds(report) == {"race"}
    assert "read by" in report.hazards[0].message


@pytest.mark.parametrize("size", ["16", "T.Cast('uint32', v % 5 * 4)"], ids=["whole", "part"])
def test_only_bytes_that_a_copy_reads_count(size: str) -> None:
    copy = COPY.replace("16)", f"16, T.if_then_else(v < 32, T.uint32(0), T.uint32({size})))")
    report = run("A[k * 256 + v * 4 + 3] = -1", WAIT, copy=copy)
    readers = sum(size == "16" or v % 5 == 4 for v in range(32, THREADS))
    assert sum(h.count for h in report.hazards if h.kind == "async") == TURNS * readers


def _halves() -> list[Any]:
    return [kernels.random((64, 64), "float16", seed) for seed in (0, 1)]


# Pipelined streams with one thing wrong.

STREAM, TILES = Stream(2), 9


def mutated(kind: type, change: Any) -> DeviceProgram:
    return kernels.rewritten(device_program(STREAM.schedule(3)), kind, change)


def hazards(program: Any) -> list[Hazard]:
    inputs = STREAM.inputs(TILES, 0, np.random.default_rng(0))
    return simulate(program, *inputs, None, TILES, TILES * TILE).hazards


def _named(node: Any, name: str) -> bool:
    return getattr(getattr(node.value, "op", None), "name", "").startswith(name)


def test_a_right_stream_is_clean() -> None:
    assert hazards(device_program(STREAM.schedule(3))) == []
    # The mutations below start from this: a mutation that changes nothing changes no result.
    assert hazards(mutated(tirx.Evaluate, lambda node: node)) == []


def _longer(node: Any) -> Any:
    if not _named(node, "tirx.ptx.cp_async_wait_group"):
        return node
    call = node.value
    args = [tirx.IntImm("int32", 2) if str(a) == "1" else a for a in call.args]
    return tirx.Evaluate(tvm.ir.Call(call.op, args, call.attrs, ret_ty=call.ty))


def test_a_short_wait_names_version_and_both_iterations() -> None:
    found = hazards(mutated(tirx.Evaluate, _longer))
    reads = [h for h in found if h.kind == "async" and "reads" in h.message]
    assert {h.buffer for h in reads} == {"A0_shared", "A1_shared"}
    assert all(h.version == dict(h.iteration)["k"] % 3 for h in reads)
    # Version 2 is the first that the loop fills: in iteration 0, for iteration 2.
    late = [h for h in reads if h.version == 2]
    assert late
    for hazard in late:
        assert hazard.iteration == (("k", 2),)
        assert ", in iteration k = 0, has not been waited for." in hazard.message
        assert f"This is version 2 of {hazard.buffer}, in iteration k = 2." in hazard.message


def test_a_missing_wait_is_an_overwrite_in_flight_too() -> None:
    program = kernels.without(device_program(STREAM.schedule(3)), "tirx.ptx.cp_async_wait_group", 0)
    found = hazards(program)
    writes = [h for h in found if h.kind == "async" and "writes" in h.message]
    first = {(h.buffer, h.version, h.iteration) for h in writes}
    # The copy of iteration k goes where that of k - 3 is: the prologue's two, then the loop's.
    assert first == {
        (f"A{i}_shared", version, (("k", version + 1),)) for i in (0, 1) for version in range(3)
    }
    # All are complete at the last wait, but are told by the iteration that issued them.
    completions = [h for h in found if h.kind == "race" and " writes " in h.message]
    assert {(h.version, h.iteration) for h in completions} == {(2, (("k", 0),))}


def test_a_dropped_barrier_is_a_race_with_version_and_iteration() -> None:
    program = kernels.without(device_program(STREAM.schedule(3)), kernels.SYNC, 0)
    found = hazards(program)
    assert {h.kind for h in found} == {"race"}
    reads = [h for h in found if " reads " in h.message]
    assert {h.version for h in reads} == {0, 1, 2}
    assert all(h.iteration == (("k", h.version),) for h in reads)
    overwrites = [h for h in found if "copies to" in h.message]
    assert overwrites
    # The copy for iteration 3, in iteration 1, meets the reads of iteration 0.
    assert {(h.version, h.iteration) for h in overwrites} == {(0, (("k", 1),))}


def test_versions_in_merged_memory() -> None:
    """Two operands of three versions of 1,024 halves each, one after the other."""
    report = simulate(kernels.without_waits(kernels.async_matmul_program()), *_halves())
    found = [h for h in report.hazards if h.buffer.endswith("_shared.dyn")]
    assert {h.buffer for h in found} == {"A_shared.dyn", "B_shared.dyn"}
    assert all(h.version == h.index % 3072 // 1024 for h in found)
    assert len({h.version for h in found}) == 3


def test_versions_of_swizzled_buffers_in_merged_memory() -> None:
    """XORs hide from TVM's analyzer which bytes a buffer has; its versions were not known."""
    changes = {"tile_m": 64, "tile_n": 64, "stages": 3, "swizzle": "xor", "prefetch": 0}
    config = gemm.OPERATOR.default_config() | changes
    sch = gemm.schedule(gemm.compute((64, 64, 192), "float16"), config)
    program = kernels.without(device_program(sch), "tirx.ptx.cp_async_wait_group", 0)
    halves = [np.ones(shape, "float16") for shape in ((64, 192), (192, 64))]
    found = [h for h in simulate(program, *halves, None).hazards if h.kind == "async"]
    assert len({h.buffer for h in found}) == 2
    # 32 steps along K of 64 rows or columns: versions of 2,048 halves, A's before B's or after.
    assert all(h.version == h.index % 6144 // 2048 for h in found)
    assert {h.version for h in found} == {0, 1, 2}


def test_a_buffer_without_versions_has_none() -> None:
    program = kernels.without(device_program(STREAM.schedule(1)), kernels.SYNC, 0)
    found = hazards(program)
    assert found
    assert {h.version for h in found} == {None}


@pytest.mark.parametrize(
    ("byte", "version"),
    [(0, None), (76, 0), (1087, 0), (1088, None), (1099, None), (1100, 1), (3100, 2), (3200, None)],
)
def test_a_version_is_told_only_where_it_is_certain(byte: int, version: int | None) -> None:
    """The buffer begins somewhere from byte 64 to 76."""
    assert Versions(3, 1024, 64, 76).of(byte) == version


BARRIERS = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((64,), 'int32'), B: T.Buffer((64,), 'int32')):
    for j in T.thread_binding(64, 'threadIdx.x'):
        with T.sblock('B'):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            for k in range(4):
                if {condition}:
                    T.cuda.cta_sync()
            B[v] = A[v]
"""


@pytest.mark.parametrize(
    ("condition", "unit", "turn"),
    [("k < 2 or v < 32", "block", 2), ("k != 1 or v < 16", "warp", 1)],
)
def test_a_barrier_that_a_part_reaches_names_the_iteration(
    condition: str, unit: str, turn: int
) -> None:
    source = tvm.script.from_source(BARRIERS.format(condition=condition))
    report = simulate(source, kernels.random((64,), "int32"))
    (hazard, *_) = [h for h in report.hazards if f"threads of a {unit}" in h.message]
    assert hazard.kind == "barrier"
    assert hazard.iteration == (("k", turn),)
    assert hazard.message.endswith(f"This is in iteration k = {turn}.")


def test_a_barrier_that_all_reach_every_other_turn_is_fine() -> None:
    source = tvm.script.from_source(BARRIERS.format(condition="k % 2 == 0"))
    assert simulate(source, kernels.random((64,), "int32")).hazards == []
