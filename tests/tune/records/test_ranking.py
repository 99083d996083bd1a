"""The order of trials: noise does not decide, failures come last."""

from __future__ import annotations

from dataclasses import replace

from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.records.ranking import NOISE, best_first


def _measured(trial: int, seconds: float, cost: float | None) -> Record:
    model = None if cost is None else make_model(cost)
    return replace(
        make_record(trial=trial),
        runner="cuda",
        status="ok",
        times=(seconds,),
        median=seconds,
        conflict_model=model,
    )


def _order(*records: Record) -> list[int]:
    return [record.trial for record in best_first(records)]


def test_a_faster_trial_comes_first() -> None:
    assert _order(_measured(0, 2e-3, 1.0), _measured(1, 1e-3, 9.0)) == [1, 0]


def test_within_the_noise_the_lower_cost_comes_first() -> None:
    close = 1e-3 * (1 + NOISE / 2)
    assert _order(_measured(0, 1e-3, 9.0), _measured(1, close, 1.0)) == [1, 0]


def test_beyond_the_noise_the_cost_does_not_count() -> None:
    far = 1e-3 * (1 + 2 * NOISE)
    assert _order(_measured(0, 1e-3, 9.0), _measured(1, far, 1.0)) == [0, 1]


def test_a_trial_without_a_cost_loses_a_tie() -> None:
    assert _order(_measured(0, 1e-3, None), _measured(1, 1e-3, 5.0)) == [1, 0]


def test_modelled_trials_have_no_noise() -> None:
    modelled = [
        replace(
            make_record(trial=trial),
            runner="simulate",
            status="ok",
            conflict_model=make_model(cost),
        )
        for trial, cost in ((0, 100.0), (1, 99.9))
    ]
    assert _order(*modelled) == [1, 0]


def test_failures_come_last() -> None:
    failed = replace(make_record(trial=0), status="error")
    assert _order(failed, _measured(1, 1.0, 1.0)) == [1, 0]
