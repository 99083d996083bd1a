"""The predicated loop against one whose last bodies are peeled off: results and sizes of both."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.peeling import peeled, statements
from tests.programs.pipelined import TILE, Stream
from tvm_layout_ext.build import device_program
from tvm_layout_ext.transform.pipeline import expand

CORPUS = [(kind, n, s) for kind in ("async", "sync") for n in (1, 2, 3) for s in range(2, 7)]


def table() -> dict[tuple[str, int, int], tuple[int, int]]:
    """The table of statements in the documentation."""
    found = {}
    rows = re.findall(r"^(\d) (a?sync) +(.*)$", expand.__doc__ or "", re.MULTILINE)
    for loads, kind, cells in rows:
        for versions, pair in enumerate(re.findall(r"(\d+), (\d+)", cells), start=2):
            found[kind, int(loads), versions] = (int(pair[0]), int(pair[1]))
    return found


def lowered(kind: str, loads: int, versions: int, tiles: int) -> tvm.IRModule:
    """The pipeline of a loop of constant extent, which peeling needs."""
    text = Stream(loads).source().replace("range(n)", f"range({tiles})")
    sch = s_tir.Schedule(tvm.script.from_source(text.replace(f"n * {TILE}", str(tiles * TILE))))
    for i in range(loads):
        sch.double_buffer(f"A{i}_shared", versions, async_copy=kind == "async")
    return tlx.lower(sch, target=tlx.cuda_target("sm_80"))


def size(mod: tvm.IRModule) -> int:
    (kernel,) = device_program(mod).kernels.values()
    return statements(kernel)


def test_the_table_has_the_whole_corpus() -> None:
    assert sorted(table()) == sorted(CORPUS)
    assert all(ours < other for ours, other in table().values())


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "loads", "versions"), CORPUS)
def test_the_predicated_loop_is_smaller(kind: str, loads: int, versions: int) -> None:
    mod = lowered(kind, loads, versions, 3 * versions - 2)
    off = peeled(mod, versions - 1)
    assert (size(mod), size(off)) == table()[kind, loads, versions]
    assert size(mod) < size(off)


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "loads", "versions"), CORPUS)
def test_both_are_right(kind: str, loads: int, versions: int) -> None:
    """So that sizes of equals are compared."""
    tiles, stream = 3 * versions - 2, Stream(loads)
    mod = lowered(kind, loads, versions, tiles)
    arrays = stream.inputs(tiles, 0, np.random.default_rng(versions))
    for one in (mod, peeled(mod, versions - 1)):
        report = tlx.simulate(one, *arrays, None, tiles, 0)
        np.testing.assert_array_equal(report.outputs["B"], stream.expected(arrays, tiles))
        assert report.hazards == []
