"""No access moves more sectors than before, but where the sectors in all at least halve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te

from tests.schedule.patterns import Pattern, all_patterns, permuted
from tvm_layout_ext.analysis.comparison import SAME
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report
from tvm_layout_ext.transform import coalesce_choice
from tvm_layout_ext.transform.auto_coalesce import coalesce
from tvm_layout_ext.transform.coalesce_choice import Way
from tvm_layout_ext.transform.coalesce_request import Request

LOSS = "moves half or less in all, but more for "


def schedule_of(pattern: Pattern) -> Any:
    return s_tir.Schedule(te.create_prim_func(pattern.tensors()))


def as_it_was(pattern: Pattern) -> Any:
    """All loops in their order, fused over blocks of 256 threads."""
    sch = schedule_of(pattern)
    loops = sch.get_loops(sch.get_sblock("B"))
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    block, thread = sch.split(fused, [None, 256])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


def sectors(report: Report) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for access in report.accesses:
        if access.scope == "global":
            key = access.buffer, access.kind
            found[key] = found.get(key, 0) + access.sectors
    return found


@pytest.mark.matrix
@pytest.mark.parametrize("pattern", all_patterns(), ids=lambda pattern: pattern.name)
def test_the_simulator_finds_no_access_worse(pattern: Pattern) -> None:
    sch = schedule_of(pattern)
    outcome = sch.auto_coalesce("B")
    arrays = pattern.arrays(np.random.default_rng(0))
    before = sectors(simulate(as_it_was(pattern), *arrays, None))
    after = sectors(simulate(sch, *arrays, None))
    same = 1 if outcome.is_exact else SAME
    worse = {key for key, was in before.items() if after[key] > same * was}
    if LOSS not in outcome.text:
        assert not worse
        return
    assert all(f"{kind} of {buffer} (" in outcome.text for buffer, kind in worse)
    assert 2 * sum(after.values()) <= SAME * sum(before.values())


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((250, 202), "float32"),
        ((301, 200), "int8"),
        ((267, 269), "int8"),
        ((166, 165), "float32"),
    ],
)
def test_a_loss_is_told_with_both_counts_where_the_sectors_in_all_halve(
    shape: tuple[int, ...], dtype: str
) -> None:
    pattern = permuted(shape, (1, 0), dtype)
    sch = schedule_of(pattern)
    outcome = sch.auto_coalesce("B")
    assert outcome.path == "staged"
    array = pattern.arrays(np.random.default_rng(0))[0]
    report = simulate(sch, array, None)
    count = 32 * sectors(report)["B", "store"] / array.size
    told = outcome.text.partition(f"{LOSS}store of B (")[2].partition(" ")[0]
    # Of 60,200 and 71,823 bytes, one a request, the warps are sampled.
    assert float(told) == pytest.approx(count, rel=0.002 if outcome.is_exact else 0.05)
    np.testing.assert_array_equal(report.outputs["B"], array.T)
    assert report.bank_conflicts == 0
    before = sectors(simulate(as_it_was(pattern), array, None))
    assert 2 * sum(sectors(report).values()) <= sum(before.values())


def only(monkeypatch: pytest.MonkeyPatch, *ways: Way) -> None:
    monkeypatch.setattr("tvm_layout_ext.transform.auto_coalesce.list_ways", lambda *_: list(ways))


def turned(sch: Any, block: Any) -> tuple[str, list[Any]]:
    """Lanes down the columns: every access is worse."""
    i, j = sch.get_loops(block)
    sch.reorder(j, i)
    fused = sch.fuse(j, i)
    grid, thread = sch.split(fused, [None, 64])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return "turned", [block]


def broken(_sch: Any, _block: Any) -> tuple[str, list[Any]]:
    raise coalesce_choice.ScheduleError("No way.")


def rows() -> Any:
    a = te.placeholder((64, 64), "float32", "A")
    return s_tir.Schedule(te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j], "B")]))


def test_a_block_that_only_gets_worse_is_left_alone_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, Way("direct", turned))
    sch = rows()
    before = str(sch.mod)
    outcome = coalesce(sch, sch.get_sblock("B"), Request())
    assert outcome.path == "alone"
    assert outcome.text.startswith("left as it was, because turned moves more for ")
    assert "load of A (32 sectors for 32 iterations, 4 before)" in outcome.text
    assert "its loops stay unbound: bind them, or call auto_coalesce with another" in outcome.text
    assert outcome.after == outcome.before
    assert str(sch.mod) == before


def test_a_way_that_is_not_possible_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, Way("staged", broken))
    sch = rows()
    with pytest.raises(coalesce_choice.ScheduleError, match=r"B: staged is not possible: No way\."):
        coalesce(sch, sch.get_sblock("B"), Request())
