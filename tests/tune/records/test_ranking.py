"""The order of trials: noise does not decide, failures come last."""

from __future__ import annotations

import pytest

from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.records.record import NOISE, best_first


def _measured(trial: int, seconds: float, cost: float | None) -> Record:
    model = None if cost is None else make_model(cost)
    return make_record(
        trial=trial, runner="cuda", times=(seconds,), median=seconds, conflict_model=model
    )


def _order(*records: Record) -> list[int]:
    return [record.trial for record in best_first(records)]


CLOSE, FAR = 1e-3 * (1 + NOISE / 2), 1e-3 * (1 + 2 * NOISE)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ((2e-3, 1.0), (1e-3, 9.0), [1, 0]),
        ((1e-3, 9.0), (CLOSE, 1.0), [1, 0]),
        ((1e-3, 9.0), (FAR, 1.0), [0, 1]),
        ((1e-3, None), (1e-3, 5.0), [1, 0]),
    ],
    ids=["faster", "cheaper within the noise", "beyond the noise", "none has a cost"],
)
def test_time_decides_and_within_the_noise_the_modelled_cost(
    first: tuple[float, float | None], second: tuple[float, float | None], order: list[int]
) -> None:
    assert _order(_measured(0, *first), _measured(1, *second)) == order


def test_modelled_trials_have_no_noise_and_failures_come_last() -> None:
    costs = ((0, 100.0), (1, 99.9))
    modelled = [make_record(trial=n, conflict_model=make_model(cost)) for n, cost in costs]
    assert _order(*modelled) == [1, 0]
    assert _order(make_record(trial=0, status="error"), _measured(1, 1.0, 1.0)) == [1, 0]
