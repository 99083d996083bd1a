"""Indirect loads: each level's share of the stages is Triton's, for S = 2 to 7 and three levels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvm_layout_ext as tlx
from tests.golden.pipeline_loops import Loop, Tile
from tests.golden.test_pipeline import gathered
from tvm_layout_ext import ScheduleError, decisions
from tvm_layout_ext.simulate import simulate

A, B = Tile("A", (64, 32), "float16"), Tile("B", (32, 64), "float16", index="IDX")
LOOPS = {
    1: Loop((A, Tile("B", (32, 64), "float16")), [("A", "B")]),
    2: Loop((Tile("IDX", (32,), "int32"), A, B), [("A", "B")]),
    3: Loop(
        (Tile("IDX2", (32,), "int32"), Tile("IDX", (32,), "int32", index="IDX2"), A, B),
        [("A", "B")],
    ),
}
#: Bodies by which Triton loads operands, indices and indices of indices before they are used, by
#: levels and stages; worked out by hand from its rule. None: not staged.
DISTANCES: dict[tuple[int, int], tuple[int | None, ...]] = {
    (1, 2): (1,),
    (1, 3): (2,),
    (1, 4): (3,),
    (1, 5): (4,),
    (1, 6): (5,),
    (2, 2): (1, None),
    (2, 3): (1, 2),
    (2, 4): (1, 2),
    (2, 5): (2, 4),
    (2, 6): (2, 4),
    (2, 7): (3, 6),
    (3, 2): (1, None, None),
    (3, 4): (1, 2, 3),
    (3, 5): (1, 2, 3),
    (3, 6): (1, 2, 3),
    (3, 7): (2, 4, 6),
}
NAMES = ("B", "IDX", "IDX2")


def planned(levels: int, stages: int, kind: str = "mma.sync") -> dict[str, int]:
    """Bodies by which each copy runs ahead."""
    with decisions.collect() as made:
        tlx.lower(gathered(LOOPS[levels], stages, kind), target=tlx.cuda_target("sm_90a"))
    records = [d.record for d in made if d.record is not None and hasattr(d.record, "steps")]
    return {s.name.removesuffix("_shared"): s.ahead for r in records for s in r.steps}


@pytest.mark.parametrize(("levels", "stages"), DISTANCES)
def test_copies_run_as_far_ahead_as_tritons(levels: int, stages: int) -> None:
    """A copy at the top of a body stands where Triton's at the end of the body before does."""
    ahead = planned(levels, stages)
    wanted = DISTANCES[levels, stages]
    found = [ahead.get(name, 0) for name in NAMES[:levels]]
    assert found == [0 if distance is None else distance - 1 for distance in wanted]
    assert ahead.get("A", 0) == found[0]


@pytest.mark.matrix
@pytest.mark.parametrize(("levels", "stages"), [k for k, d in DISTANCES.items() if None not in d])
def test_with_wgmma_they_run_one_further(levels: int, stages: int) -> None:
    """Its product goes on while the next copies start, which takes a version more."""
    ahead = planned(levels, stages, "wgmma")
    assert tuple(ahead[name] for name in NAMES[:levels]) == DISTANCES[levels, stages]


def test_indices_that_triton_does_not_stage_cannot_feed_copies_that_run_ahead() -> None:
    """Triton loads these where it gathers by them; staged all the same, they would come late."""
    with pytest.raises(ScheduleError, match=r"give block IDX_shared, which must run before it"):
        planned(2, 2, "wgmma")
    assert tlx.versions_for_triton_stages(3, level=2, levels=3) == 1
    with pytest.raises(ScheduleError, match=r"give block IDX2_shared, which must run before it"):
        planned(3, 3)


@pytest.mark.parametrize(("levels", "stages"), [(2, 3), (2, 5), (3, 4), (3, 7)])
def test_results_and_no_race(levels: int, stages: int) -> None:
    n, draw = 5, np.random.default_rng(stages)
    arrays = {"A": draw.integers(-4, 5, (64 * n, 32)), "B": draw.integers(-4, 5, (32 * n, 64))}
    arrays |= {name: draw.integers(0, 32 * n, 32 * n) for name in ("IDX", "IDX2")}
    tiles = LOOPS[levels].tiles
    given = [arrays[t.name].astype(t.dtype) for t in tiles]
    report = simulate(gathered(LOOPS[levels], stages), *given, np.zeros(128, "float32"), n)
    index = arrays["IDX"] if levels == 2 else arrays["IDX"][arrays["IDX2"]]
    first = arrays["A"][(np.arange(128)[None] + 1) % 64 + 64 * np.arange(n)[:, None], 0]
    second = arrays["B"][index[(np.arange(128)[None] + 1) % 32 + 32 * np.arange(n)[:, None]], 0]
    np.testing.assert_array_equal(report.outputs["OUT"], (first + second).sum(0))
    assert report.hazards == []


@pytest.mark.parametrize(
    ("level", "levels"), [(2, 2), (-1, 1), (0, 0), ("a", 1), (True, 2), (0, True)]
)
def test_refuses_what_is_no_level(level: Any, levels: Any) -> None:
    with pytest.raises(ScheduleError, match=r"levels? must be"):
        tlx.versions_for_triton_stages(3, level=level, levels=levels)
