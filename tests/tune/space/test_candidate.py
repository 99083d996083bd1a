"""Candidates with sampled knobs: traces replay, configurations are read back, code is the same."""

from __future__ import annotations

import random

import pytest
import tvm_ffi
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext.tune.search.cost_model import Facts, explored, facts
from tvm_layout_ext.tune.search.design import Candidates, openers
from tvm_layout_ext.tune.space.candidate import config_of, traced
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task, make_task

TASKS = [
    ("transpose", (64, 96), "float32"),
    ("matmul", (64, 64, 32), "float32"),
    ("gemm", (128, 128, 64), "float16"),
    ("row_sum", (64, 256), "float16"),
]


@pytest.fixture(params=TASKS, ids=lambda work: work[0])
def task(request: pytest.FixtureRequest) -> Task:
    return make_task(*request.param)


def some(task: Task, count: int) -> list[dict[str, object]]:
    return random.Random(5).sample(task.space.legal, min(count, len(task.space.legal)))


def test_configuration_is_read_back_and_traces_replay_through_json(task: Task) -> None:
    knobs = task.operator.knobs
    for config in some(task, 3):
        sch = traced(task, config)
        simple = sch.trace.simplified(remove_postproc=True)
        assert [config_of(one, knobs) for one in (sch, sch.mod, sch.trace, simple)] == [config] * 4
        again = s_tir.Schedule(task.unscheduled)
        s_tir.Trace.apply_json_to_schedule(sch.trace.as_json(), again)
        assert tvm_ffi.structural_equal(again.mod, sch.mod)


def test_samples_drawn_again_give_the_same_candidate(task: Task) -> None:
    (config,) = some(task, 1)
    sch = traced(task, config)
    blank = s_tir.Trace(sch.trace.insts, {})
    again = s_tir.Schedule(task.unscheduled, seed=7)
    blank.apply_to_schedule(again, remove_postproc=True)
    assert config_of(again, task.operator.knobs) == config


def test_notes_of_knobs_change_no_code() -> None:
    task = make_task("matmul", (64, 64, 32), "float32")
    config = task.space.default()
    target = tlx.default_target()
    noted, plain = (
        tlx.build(module, target=target).mod.imports[0].inspect_source()
        for module in (traced(task, config).mod, task.module(config))
    )
    assert noted == plain


def test_neighbours_are_legal_and_differ_in_one_or_two_knobs(task: Task) -> None:
    candidates, rng = Candidates(task), random.Random(0)
    config = task.space.default()
    for _ in range(50):
        other = candidates.neighbour(config, rng)
        assert other is not None
        assert candidates.is_legal(other)
        assert sum(other[name] != config[name] for name in config) in (1, 2)
        config = other
    candidates._legal = {candidates.key(config)}
    assert candidates.neighbour(config, rng) is None


def test_search_starts_from_the_best_scored_and_some_others() -> None:
    task = make_task(find_operator("row_sum"), (64, 256), "float16")
    candidates = Candidates(task)
    order = {candidates.key(config): rank for rank, config in enumerate(task.space.legal)}
    scored = [(config, float(rank)) for rank, config in enumerate(task.space.legal)]
    start = openers(candidates, scored[::-1], random.Random(0), 16)
    found = [order[candidates.key(config_of(sch, task.operator.knobs))] for sch in start]
    assert found[:12] == list(range(12))
    assert len(set(found)) == 16
    assert min(found[12:]) >= 12


def test_facts_of_what_cannot_be_scheduled_are_none() -> None:
    task = make_task(find_operator("row_sum"), (64, 256), "float16")
    config = task.space.default()
    (known, unknown) = facts(task, [config, config | {"threads": 7}])
    assert unknown is None
    assert known is not None
    sch = Candidates(task).schedule(config)
    assert sch is not None
    row, seconds = Facts(Candidates(task)).of_schedule(sch)
    assert (list(known[0]), known[1]) == (list(row), seconds)


def test_neighbours_of_the_best_are_ranked_too_and_are_those_of_the_seed() -> None:
    task = make_task("gemm", (128, 128, 64), "float16")
    given = some(task, 4)
    plain, found = explored(task, given, 3, 0), explored(task, given, 3, 2)
    configs = [config for config, _ in found]
    assert [config for config, _ in plain] == configs[:4] == given
    assert len(found) > 4
    assert [config for config, _ in explored(task, given, 3, 2)] == configs
    assert [config for config, _ in explored(task, given, 4, 2)] != configs
    candidates = Candidates(task)
    keys = [candidates.key(config) for config in configs]
    assert len(set(keys)) == len(keys)
    assert all(map(candidates.is_legal, configs))
    seconds = [fact[1] for _, fact in found if fact is not None]
    assert min(seconds[4:]) <= min(seconds[:4])
