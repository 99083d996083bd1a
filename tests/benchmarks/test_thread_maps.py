"""Modelled times of mappings beside those that an H200 took, replayed from what was counted."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean, median

import pytest

from benchmarks import thread_maps
from benchmarks.fit_thread_maps import Measured, forecast, lost, read_pairs, within
from benchmarks.rank_correlation import spearman
from benchmarks.thread_maps import planned, program, proposals
from benchmarks.thread_programs import PROGRAMS, Program
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.rows.plan import RowPlan
from tvm_layout_ext.gpu.kernel_time import KernelWork

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
FILE = RESULTS / "h200_thread_maps.json"
#: Copies, pads and permutations of the programs of ``random_shapes``.
DRAWN = RESULTS / "h200_thread_maps_drawn.json"
#: Sums of groups of channels, as those of group norms.
GROUPS = RESULTS / "h200_thread_maps_groups.json"
#: Reductions along rows with plans of their kernels, which are counted anew.
ROWS = json.loads((RESULTS / "h200_along_rows.json").read_text())["pairs"]


@cache
def measured() -> list[Measured]:
    return read_pairs(FILE)


def test_pairs_are_many_and_of_many_programs() -> None:
    assert len(measured()) >= 1000
    assert len({pair.program for pair in measured()}) >= 60


def test_modelled_times_order_all_pairs_as_the_gpu_did() -> None:
    modelled = forecast(measured())
    assert (spearman(modelled, [pair.seconds for pair in measured()]) or 0) >= 0.95


def test_modelled_times_order_the_maps_of_a_program_as_the_gpu_did() -> None:
    found = within(measured(), forecast(measured())).values()
    assert median(found) >= 0.85
    assert mean(found) >= 0.8


def test_the_default_with_the_least_modelled_time_is_nearly_the_fastest_of_all() -> None:
    """Beside all variants of threads and vectors, 19 of a program."""
    default = [pair for pair in measured() if pair.text.endswith("[0, 16, 'auto']")]
    fastest: dict[str, float] = {}
    for pair in measured():
        fastest[pair.program] = min(pair.seconds, fastest.get(pair.program, float("inf")))
    chosen = {
        name: took * min(pair.seconds for pair in default if pair.program == name) / fastest[name]
        for name, took in lost(default, forecast(default)).items()
    }
    assert geometric_mean(chosen.values()) <= 1.06
    assert max(chosen.values()) <= 1.4


@pytest.mark.parametrize("file", [DRAWN, GROUPS])
def test_of_other_programs_the_model_takes_what_is_nearly_the_fastest(file: Path) -> None:
    pairs = read_pairs(file)
    modelled = forecast(pairs)
    assert (spearman(modelled, [pair.seconds for pair in pairs]) or 0) >= 0.95
    assert max(lost(pairs, modelled).values()) <= 1.1


@pytest.mark.parametrize("name", sorted({row["program"] for row in ROWS}))
def test_of_plans_of_rows_the_model_takes_what_is_nearly_the_fastest(name: str) -> None:
    plans = [row for row in ROWS if row["program"] == name and row["path"] == "plan"]
    one = program(name)
    now = [planned(one, one.function(), RowPlan(*row["request"]))[0].modelled for row in plans]
    chosen = plans[now.index(min(now))]
    assert chosen["measured"] <= 1.05 * min(row["measured"] for row in plans)


@pytest.mark.parametrize("name", sorted({row["program"] for row in ROWS}))
def test_of_reductions_along_rows_the_default_is_nearly_the_fastest_of_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_maps, "REQUESTS", [Request()])
    seconds = {row["map"]: row["measured"] for row in ROWS if row["program"] == name}
    modelled = {pair.map: pair.modelled for pair, _ in proposals(program(name), 30)}
    assert seconds[min(modelled, key=lambda way: modelled[way])] <= 1.05 * min(seconds.values())


def test_facts_survive_their_file() -> None:
    work = measured()[0].kernels[0]
    assert KernelWork.from_json(work.to_json()) == work


@pytest.mark.costly
@pytest.mark.parametrize("name", ["sum-16x2097152-float16-1", "permute-256x384x320-float16-201"])
def test_a_program_has_several_proposals_each_with_a_time(name: str) -> None:
    found = [pair for pair, _ in proposals(PROGRAMS[name], 4)]
    assert len({pair.map for pair in found}) >= 2
    assert all(0 < pair.modelled < float("inf") for pair in found)


def test_programs_say_what_they_are() -> None:
    program = Program("sum", (300, 257), "float16", (1,))
    assert (program.name, program.bytes()) == ("sum-300x257-float16-1", 300 * 257 * 2)
    assert program.results() == [((300,), "float32")]
