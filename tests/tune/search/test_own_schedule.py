"""Tuning a function by a schedule of the user's own, and refusals of what is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import tirx

from tests.programs.mapped import share
from tests.tune.helpers import by_threads, doubled
from tvm_layout_ext import te
from tvm_layout_ext.errors import LayoutError, ScheduleError, TargetError
from tvm_layout_ext.tune import Log, Result, apply_best, tune
from tvm_layout_ext.tune.space.knobs import Config, knob


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        (3, {}, "Cannot tune a int; give a PrimFunc"),
        (tvm.IRModule({}), {}, "A module of one function is wanted, not of 0"),
        ("transpose", {"shape": (8, 8), "runner": None},
         "A runner is a name or an object that runs, not None"),
        (doubled(), {"schedule": 3, "knobs": [knob("threads", (8,))]},
         r"A schedule is a function of \(sch, config\), not 3"),
        (doubled(), {"schedule": by_threads, "knobs": ["threads"]},
         "'threads' is no knob; make one by knob"),
        (doubled(), {"schedule": by_threads, "knobs": [knob("t", (8,)), knob("t", (9,))]},
         "Two knobs are called t; names must differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_tuned_or_run_is_refused(
    what: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises((ScheduleError, TargetError), match=message):
        tune(what, **({"runner": "simulate"} | options))


def by_hand(sch: tvm.s_tir.Schedule, config: Config) -> None:
    if config["threads"] == 8:
        sch.get_sblock("no such block")
    if config["threads"] == 16:
        raise ZeroDivisionError
    by_threads(sch, config)


@pytest.mark.parametrize("default", [8, 32])
def test_own_schedule_that_raises_is_a_failed_trial_and_not_the_end_of_the_run(
    default: int,
) -> None:
    knobs = [knob("threads", (8, 16, 32, 64), default)]
    module = tvm.IRModule({"main": doubled(64)})
    result = tune(module, schedule=by_hand, knobs=knobs, runner="simulate")
    told = {record.config["threads"]: record.error_class for record in result.trials}
    assert told == {8: "ScheduleError", 16: "ZeroDivisionError", 32: None, 64: None}
    assert result.best is not None
    assert result.default.config == {"threads": default}


def in_shared(sch: tvm.s_tir.Schedule, config: Config) -> None:
    block = sch.get_sblock("B")
    staged = sch.cache_read(block, 0, config["scope"])
    outer, inner = sch.split(sch.get_loops(block)[0], [None, config["tile"]])
    sch.bind(outer, "blockIdx.x")
    sch.compute_at(staged, outer)
    for loop in (inner, sch.get_loops(staged)[-1]):
        _, lane = sch.split(loop, [None, 256])
        sch.bind(lane, "threadIdx.x")


def staged(scope: str, tiles: tuple[int, ...], **options: Any) -> Result:
    """Tune a copy through tiles of so many floats."""
    knobs = [knob("scope", (scope,)), knob("tile", tiles)]
    return tune(doubled(65536), schedule=in_shared, knobs=knobs, runner="simulate", **options)


@pytest.mark.parametrize(
    ("scope", "fits", "refusal"),
    [
        ("shared", 8192, "needs 65,536 bytes of static shared memory"),
        ("shared.dyn", 16384, "needs 262,144 bytes of shared memory"),
    ],
)
def test_kernel_that_no_gpu_holds_is_pruned_and_counted(
    scope: str, fits: int, refusal: str, tmp_path: Path
) -> None:
    """It won on the simulated GPU, and ``tlx.build`` then refused it."""
    tiles = {8192: 16384, 16384: 65536}
    result = staged(scope, (fits, tiles[fits]), log=tmp_path)
    assert [(r.config["tile"], r.status) for r in result.trials] == [(fits, "ok")]
    assert result.task.space.refused == {"shared memory": 1}
    assert [config["tile"] for config in result.task.space.legal] == [fits]
    # Neither records nor a resumed run know of it.
    assert len(Log(tmp_path).read().records) == 1
    again = staged(scope, (fits, tiles[fits]), log=tmp_path)
    assert (again.resumed, len(again.trials)) == (1, 1)
    only = rf"has no legal configuration .*: shared memory \(1\); the first: Kernel .* {refusal}"
    with pytest.raises(ScheduleError, match=only):
        staged(scope, (tiles[fits],))


def test_buffers_that_share_their_place_are_not_pruned() -> None:
    """Tiles of 128 KiB each, one after the other, are 128 KiB of dynamic memory."""

    def in_turns(sch: tvm.s_tir.Schedule, config: Config) -> None:
        first = sch.cache_read(sch.get_sblock("B"), 0, "shared.dyn")
        second = sch.cache_read(sch.get_sblock("C"), 0, "shared.dyn")
        for name, tile in (("B", first), ("C", second)):
            block = sch.get_sblock(name)
            outer, inner = sch.split(sch.get_loops(block)[0], [None, config["tile"]])
            sch.bind(outer, "blockIdx.x")
            sch.compute_at(tile, outer)
            for loop in (inner, sch.get_loops(tile)[-1]):
                sch.bind(sch.split(loop, [None, 256])[1], "threadIdx.x")

    source = te.placeholder((65536,), "float32", name="A")
    middle = te.compute((65536,), lambda i: source[i] * 2.0, name="B")
    func = te.create_prim_func([source, te.compute((65536,), lambda i: middle[i] + 1.0, name="C")])
    knobs = [knob("tile", (32768,))]
    result = tune(func, schedule=in_turns, knobs=knobs, runner="simulate")
    assert [record.status for record in result.trials] == ["ok"]
    assert not result.task.space.refused


def wide(sch: tvm.s_tir.Schedule, config: Config) -> None:
    if config["threads"] == 16:
        raise LayoutError("16 threads are too few.")
    outer, inner = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, config["threads"]])
    if config["grid"]:
        sch.bind(outer, "blockIdx.x")
    sch.bind(inner, "threadIdx.x")


@pytest.mark.parametrize("strategy", ["evolutionary", "replay"])
def test_threads_and_what_the_schedule_refuses_are_pruned_and_counted(strategy: str) -> None:
    knobs = [knob("threads", (16, 64, 1024, 2048, 4096), 2048), knob("grid", (0, 1), 1)]
    told: list[tuple[int, int]] = []
    result = tune(
        doubled(), schedule=wide, knobs=knobs, runner="simulate", strategy=strategy,
        progress=lambda _, done, total: told.append((done, total)),
    )  # fmt: skip
    assert result.task.space.refused == {"threads and blocks": 4, "refused by the schedule": 2}
    # The default is not legal: its neighbour by one step is trial 0.
    assert result.default.config == {"threads": 1024, "grid": 1}
    assert {record.status for record in result.trials} == {"ok"}
    assert len(result.trials) == len(result.task.space.legal) == 4
    assert told[-1] == (4, 4)


def test_a_schedule_that_was_changed_is_not_taken_from_the_log(tmp_path: Path) -> None:
    """Scores of the old one were given as the new one's, and what was mended stayed broken."""

    def by_vectors(width: int) -> Result:
        def copy(sch: tvm.s_tir.Schedule, config: Config) -> None:
            if config["threads"] == 64 and width == 1:
                raise KeyError("not yet")
            share(sch, config["threads"], width)

        knobs = [knob("threads", (32, 64))]
        return tune(doubled(), schedule=copy, knobs=knobs, runner="simulate", log=tmp_path)

    first, again, other = by_vectors(1), by_vectors(1), by_vectors(4)
    assert [record.status for record in first.trials] == ["ok", "error"]
    assert (again.resumed, again.warning) == (2, None)
    assert [record.status for record in other.trials] == ["ok", "ok"]
    assert other.resumed == 0
    assert other.warning == (
        "Ran 2 candidates again, which the log has of another schedule with these knobs."
    )
    before, after = (one.trials[0].conflict_model or {} for one in (first, other))
    assert before["requests"] == 4 * after["requests"]
    assert (by_vectors(4).resumed, len(Log(tmp_path).read().records)) == (2, 2)


def test_knobs_of_ones_own_are_not_given_to_the_schedule_that_fits(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the same names were, and others were warned of before the right one was taken."""

    knobs = [knob("threads", (64,)), knob("vector_bytes", (16,)), knob("stage", ("auto",))]
    tune(doubled(), schedule=by_threads, knobs=knobs, runner="simulate", log=tmp_path)
    applied = apply_best(doubled(), tmp_path)
    ((_, found),) = applied.functions_items()
    extents: list[int] = []
    tvm_ffi.structural_walk(found.body, [(tirx.For, lambda loop: extents.append(int(loop.extent)))])
    assert sorted(extents) == [64, 64]
    assert not caplog.records
