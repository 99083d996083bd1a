"""Random legal chains of the face's primitives compute what NumPy computes, without hazards."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import HealthCheck, event, given, note, settings

from tests import sampling
from tests.programs.chains import Problem, chains
from tvm_layout_ext import ScheduleError, device_program
from tvm_layout_ext.simulate import simulate

#: Chains are legal by construction but for what only TensorIR's bound inference sees.
_MOST_REFUSED = 0.05


def _outcome(problem: Problem, schedule: Any) -> str:
    """Whether a schedule ran or was refused; fails if it ran wrong."""
    for line in problem.log:
        note(line)
    arrays = problem.arrays(seed=0)
    try:
        mod = schedule.to_module(problem.args)
        assert problem.unequal is None
        note(mod.script())
        # Whether a copy fills all that its readers need of a version is known when it is lowered.
        program = device_program(mod)
    except ScheduleError as error:
        note(str(error))
        return "unequal" if f"bind {problem.unequal} to loops" in str(error) else "refused"
    report = simulate(program, *arrays, progress=False)
    for tensor, wanted in zip(problem.outputs, problem.reference(*arrays), strict=True):
        np.testing.assert_array_equal(report.outputs[tensor.op.name], wanted)
    assert report.hazards == []
    return "ran"


def test_random_schedules_equal_numpy() -> None:
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=sampling.matrix_examples(300),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(chains())
    def run(chain: tuple[Problem, Any]) -> None:
        problem, schedule = chain
        outcome = _outcome(problem, schedule)
        event(f"{problem.name}: {outcome}")
        outcomes[outcome] += 1

    run()
    total = sum(outcomes.values())
    assert total >= sampling.matrix_examples(300)
    assert outcomes["refused"] <= max(1, _MOST_REFUSED * total)
