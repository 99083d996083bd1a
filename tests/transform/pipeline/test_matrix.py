"""Pipelined streams of every length and depth: values, hazards, barriers and versions."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
from tvm import tirx

import tvm_layout_ext as tlx
from tests.programs.pipelined import TILE, Stream
from tests.programs.running import gives
from tvm_layout_ext.simulate import simulate


@pytest.mark.matrix
@pytest.mark.parametrize("ragged", [False, True], ids=["exact", "ragged"])
@pytest.mark.parametrize("async_copy", [False, "auto"], ids=["sync", "async"])
@pytest.mark.parametrize("loads", [1, 2, 3])
@pytest.mark.parametrize("stages", range(1, 7))
def test_all_extents(stages: int, loads: int, async_copy: bool | str, ragged: bool) -> None:
    """One program serves extents 0 to 9, less than its depth and more."""
    stream = Stream(loads, ragged)
    lowered = tlx.device_program(stream.schedule(stages, async_copy))
    rng = np.random.default_rng(stages)
    for tiles in range(10):
        inputs = stream.inputs(tiles, min(5, tiles * TILE), rng)
        gives(lowered, *inputs, None, tiles, len(inputs[0]), B=stream.expected(inputs, tiles))


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize("async_copy", [False, True])
@pytest.mark.parametrize("each", [(1, 3), (3, 1), (2, 4), (4, 2, 3)])
def test_copies_of_one_loop_may_have_their_own_depths(
    each: tuple[int, ...], async_copy: bool
) -> None:
    stream = Stream(len(each))
    sch = tlx.device_program(stream.schedule(each, async_copy if 1 not in each else "auto"))
    for tiles in (0, 1, 2, 5, 9):
        inputs = stream.inputs(tiles, 0, np.random.default_rng(tiles))
        gives(sch, *inputs, None, tiles, tiles * TILE, B=stream.expected(inputs, tiles))


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_one_wait_and_one_barrier_an_iteration(stages: int) -> None:
    """All copies of an iteration form one group; N - 2 younger ones may be under way.

    The second wait, for all, comes after the loop.
    """
    text = tlx.lower(Stream(3).schedule(stages)).script()
    loop = text[text.index("for k in range(n)") :]
    waits = re.findall(r'T.ptx.cp\((\d), "async", "wait_group", ""\)', text)
    assert waits == [str(stages - 2), "0"]
    assert loop.count("commit_group") == 1
    assert loop.count("tvm_storage_sync") == text.count("tvm_storage_sync") == 1


def test_a_ragged_tail_is_one_copy_filled_up_with_zeros() -> None:
    text = tlx.lower(Stream(1, ragged=True).schedule(2)).script()
    assert "T.if_then_else" not in text
    assert text.count('"async", "cg", "shared", "global"') == 2  # the prologue's, and the loop's
    assert "T.max(T.min(" in text


def _break(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_layout_ext.transform.pipeline import expand, plan

    if wrong == "wait":
        lag = plan.PipelinePlan.lag
        monkeypatch.setattr(plan.PipelinePlan, "lag", lambda self, copies: lag(self, copies) + 1)
    elif wrong == "barrier":
        monkeypatch.setattr(expand, "_barrier", lambda one: tirx.Evaluate(0))
    elif wrong == "modulo":
        floormod = expand.tirx.floormod
        shrunk = SimpleNamespace(**vars(expand.tirx))
        shrunk.floormod = lambda step, versions: floormod(step, versions - 1)
        monkeypatch.setattr(expand, "tirx", shrunk)
    else:
        fewer = plan._versions
        monkeypatch.setattr(plan, "_versions", lambda p, i: fewer(p, i) - 1)


@pytest.mark.matrix
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("wrong", ["wait", "barrier", "version", "modulo"])
def test_mutations_are_hazards(wrong: str, stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait off by one, a barrier dropped, a version too few, versions counted modulo one less.

    Nothing plans barriers here.
    """
    _break(wrong, monkeypatch)
    monkeypatch.setitem(tlx.pipeline._BEFORE, "tirx.SplitHostDevice", ())
    stream = Stream(2)
    inputs = stream.inputs(9, 0, np.random.default_rng(0))
    assert simulate(stream.schedule(stages), *inputs, None, 9, 9 * TILE).hazards
