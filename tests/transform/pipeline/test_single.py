"""Asynchronous copies into one version: structure, results without races, refusals."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.pipelined import Stream
from tests.programs.running import gives
from tvm_layout_ext import ScheduleError, decisions
from tvm_layout_ext.simulate import simulate

GROUP = re.compile(r'"(commit|wait)_group"')
COPY = re.compile(r'"async", "c[ag]"')
SM_80 = tlx.cuda_target("sm_80")


def lowered(sch: s_tir.Schedule) -> str:
    return str(tlx.lower(sch, target=SM_80).script())


@pytest.mark.parametrize("loads", [1, 2, 3])
def test_copies_of_a_body_are_one_group_that_the_body_waits_for(loads: int) -> None:
    text = lowered(Stream(loads).schedule(1, True))
    before, loop = text.split("for k in range(n):")
    assert not COPY.search(before)
    assert len(COPY.findall(loop)) == loads
    assert GROUP.findall(loop) == ["commit", "wait"]
    assert 'T.ptx.cp(0, "async", "wait_group"' in loop
    assert loop.rindex('"async", "cg"') < loop.index("wait_group") < loop.index("acc[0] +")


@pytest.mark.matrix
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("loads", [1, 3])
@pytest.mark.parametrize("tiles", [0, 1, 4])
def test_results_and_no_race(tiles: int, loads: int, ragged: bool) -> None:
    stream, rng = Stream(loads, ragged), np.random.default_rng(tiles)
    cut = 5 if tiles else 0
    arrays = stream.inputs(tiles, cut, rng)
    report = gives(
        stream.schedule(1, True),
        *arrays,
        None,
        tiles,
        len(arrays[0]),
        target=SM_80,
        B=stream.expected(arrays, tiles),
    )
    # Copied, read; then copied again.
    assert report.barriers <= 2 * tiles


@pytest.mark.parametrize("depths", [(1, 3), (3, 1), (1, 2, 1)])
def test_beside_copies_that_run_ahead(depths: tuple[int, ...]) -> None:
    stream = Stream(len(depths))
    arrays = stream.inputs(5, 0, np.random.default_rng(1))
    with decisions.collect() as made:
        report = simulate(
            stream.schedule(depths, True), *arrays, None, 5, len(arrays[0]), target=SM_80
        )
    np.testing.assert_array_equal(report.outputs["B"], stream.expected(arrays, 5))
    assert report.hazards == []
    told = {d.text for d in made if "one version" in d.text}
    assert told == {
        "one version, waited for in the body of loop k that copies, and with it for the copies "
        "that run ahead"
    }


def test_refuses_what_cannot_be_asynchronous() -> None:
    with pytest.raises(ScheduleError, match=r"Block A0_shared asks for asynchronous .* sm_80"):
        tlx.lower(Stream().schedule(1, True), target=tlx.cuda_target("sm_75"))
    with pytest.raises(ScheduleError, match=r"A0_shared cannot be .* copies 32 bytes"):
        lowered(Stream(dtype="float64").schedule(1, True))


def test_refuses_a_statement_that_copies_and_reads() -> None:
    """The inner loop copies and reads; the outer one, too, reads the tile that is left."""
    source = """
@T.prim_func(s_tir=True)
def main(A: T.Buffer((4, 4, 128), "float32"), B: T.Buffer((4, 128), "float32")):
    for t in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("all"):
            S = T.sblock_alloc_buffer((128,), "float32", scope="shared")
            for k in range(4):
                for r in range(4):
                    for v in T.vectorized(4):
                        with T.sblock("copy"):
                            S[t * 4 + v] = A[k, r, t * 4 + v]
                            B[k, t * 4 + v] = S[t * 4 + v]
                for v in range(4):
                    with T.sblock("use"):
                        B[k, t * 4 + v] = B[k, t * 4 + v] + S[127 - t * 4 - v]
"""
    sch = s_tir.Schedule(tvm.script.from_source(source))
    for key in ("num_stages", "async_copy"):
        sch.annotate(sch.get_sblock("copy"), f"layout_ext.{key}", 1)
    with pytest.raises(ScheduleError, match=r"Block copy .* statement of loop k .* reads what it"):
        lowered(sch)
