"""Searches replayed on the committed sweeps of an H200, and what is recorded of longer ones."""

from __future__ import annotations

import json
import random
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.search_quality import ALONE, curve, drawn, guided, ranks, spearman, task_of
from benchmarks.sweep_file import Sweep
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.model.costs import costs
from tvm_layout_ext.tune.model.features import features, kernels_of
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SWEEPS = sorted(path.name for path in RESULTS.glob("h200_sweep_*.jsonl"))
RECORDED = json.loads((RESULTS / "h200_search_quality.json").read_text())
#: Knobs that only lay out shared memory, and those that do not touch it.
LAYOUT, APART = {"align_factor", "align_offset", "swizzle"}, {"cluster"}


@cache
def read(name: str) -> Sweep:
    return Sweep.read(RESULTS / name)


@cache
def task_for(name: str) -> Task:
    return task_of(read(name))


def recorded(name: str) -> dict[str, Any]:
    (found,) = (one for one in RECORDED["sweeps"] if one["sweep"] == name)
    return dict(found)


def test_curves_and_correlations() -> None:
    assert curve([None, 4.0, 8.0, 2.0], 2.0) == [0.0, 0.5, 0.5, 1.0]
    assert ranks([5.0, 1.0, 5.0, 0.0]).tolist() == [2.5, 1.0, 2.5, 0.0]
    assert spearman([1.0, 2.0, 3.0, 4.0], [1.0, 4.0, 9.0, 16.0]) == 1.0
    assert spearman([1.0, 1.0], [1.0, 2.0]) is None


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_hold_all_that_was_legal_and_what_a_search_asks_for(name: str) -> None:
    sweep = read(name)
    assert sweep.corrupt == 0
    assert len(sweep.by_config) == len(sweep.entries) == sweep.header.legal
    assert all(len(entry.times) == sweep.header.protocol["repeats"] for entry in sweep.entries)
    assert {sweep.key(config) for config in task_for(name).space.legal} <= set(sweep.by_config)


@pytest.mark.parametrize("name", SWEEPS)
def test_what_is_recorded_is_of_this_sweep(name: str) -> None:
    sweep, found = read(name), recorded(name)
    best = sweep.best.seconds or 0.0
    assert (found["measured"], found["best_config"]) == (len(sweep.entries), sweep.best.config)
    for seed, run in enumerate(found["random"]):
        seconds = drawn(sweep, seed, RECORDED["trials"])
        assert run == pytest.approx(curve(seconds, best))
        assert found["random" + ALONE][seed] == pytest.approx(curve([None, *seconds[1:]], best))
    reachable = {best / entry.seconds for entry in sweep.entries if entry.seconds}
    for run in found["guided"] + found["guided" + ALONE]:
        assert len(run) == RECORDED["trials"]
        assert set(run) <= reachable | {0.0}


@pytest.mark.parametrize("name", SWEEPS)
def test_docs_have_the_recorded_figures(name: str) -> None:
    found = recorded(name)
    best = read(name).best.seconds or 0.0
    speeds = [best / entry.seconds for entry in read(name).entries if entry.seconds]
    assert found["within_5_percent"] == sum(share >= 0.95 for share in speeds)
    last = [[run[-1] for run in found[search + ALONE]] for search in ("guided", "random")]
    models = (found["correlation"][model]["spearman"] for model in ("latency", "simulator"))
    row = (
        found["workload"],
        f"{found['legal']}, {found['within_5_percent']}",
        f"{found['guided'][0][0]:.3f}",
        *(f"{statistics.median(shares):.3f} ({min(shares):.3f})" for shares in last),
        ", ".join(f"{model:.2f}" for model in models),
    )
    assert f"| {' | '.join(row)} |" in (RESULTS.parents[1] / "docs" / "performance.md").read_text()


@pytest.mark.parametrize("name", SWEEPS)
def test_guided_searches_come_near_the_best_and_are_ahead_of_random_ones(name: str) -> None:
    found = recorded(name)
    for ending in ("", ALONE):
        last = [run[-1] for run in found[f"guided{ending}"]]
        assert len(last) == 5
        assert sum(share >= 0.95 for share in last) >= 4
    at_random = [run[-1] for run in found["random" + ALONE]]
    assert statistics.median(last) >= statistics.median(at_random)


def test_a_short_guided_search_reaches_the_best_of_a_flat_sweep() -> None:
    sweep = read("h200_sweep_row_sum_32768x4096.jsonl")
    seconds = guided(sweep, seed=0, trials=12)
    assert len(seconds) == 12
    assert curve([None, *seconds[1:]], sweep.best.seconds or 0.0)[-1] >= 0.95


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("h200_sweep_transpose_8192.jsonl", 0.85),
        # Slices of K are forecast less well than tiles.
        ("h200_sweep_gemm_4096.jsonl", 0.75),
        ("h200_sweep_gemm_1024x4096x4096.jsonl", 0.75),
    ],
)
def test_modelled_latency_orders_as_the_gpu_does(name: str, least: float) -> None:
    task = task_for(name)
    some = random.Random(1).sample(read(name).entries, 48)
    forecasts = [costs(task, e.config).seconds for e in some]
    assert (spearman(forecasts, [e.seconds or 0.0 for e in some]) or 0.0) >= least


def test_simulated_cost_orders_transposes_as_the_gpu_does() -> None:
    name = "h200_sweep_transpose_8192.jsonl"
    some = random.Random(1).sample(read(name).entries, 16)
    costs = [float(count(task_for(name), e.config)[1]["cost"]) for e in some]
    assert (spearman(costs, [e.seconds or 0.0 for e in some]) or 0.0) >= 0.7


def wavefronts(task: Task, config: Config) -> float:
    """Of shared memory, in closed form, for the whole grid."""
    module = task.module(config)
    values = features(task, config, module)
    (kernel,) = kernels_of(module)
    return kernel.grid * (2 ** values["wavefronts"] - 1)


@pytest.mark.parametrize("name", [name for name in SWEEPS if "row_sum" not in name])
def test_layout_of_the_best_has_the_fewest_wavefronts(name: str) -> None:
    """Among all factors, offsets and swizzles for its tiles."""
    task, best = task_for(name), read(name).best.config
    others = [
        config
        for config in task.space.legal
        if all(config[knob] == best[knob] for knob in best if knob not in LAYOUT | APART)
    ]
    assert best in others
    counts = [wavefronts(task, config) for config in others]
    assert wavefronts(task, best) == min(counts)
    assert wavefronts(task, best) < max(counts)
