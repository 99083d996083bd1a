"""Winners that are run again beside their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import pytest

from tests.tune.helpers import make_record
from tvm_layout_ext.errors import TargetError
from tvm_layout_ext.tune.apply.replay import Checked, check, replay
from tvm_layout_ext.tune.measure.backend import Measurement, ReportedError
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import make_task

#: By name, as the package may have the function under it.
MODULE = import_module("tvm_layout_ext.tune.apply.replay")
DEFAULT = find_operator("transpose").default_config()
WINNER = DEFAULT | {"align_offset": 3}


def timed(seconds: float) -> Measurement:
    return Measurement(0, None, times=(seconds,))


class FakeBackend:
    """Gives set times alone, and others where winner and default take turns."""

    def __init__(self, alone: Mapping[int, Any], turns: list[Measurement | None]) -> None:
        self.name, self.device, self.alone, self.turns = "cuda", "GPU", alone, turns
        self.asked: list[list[int]] = []
        self.closed = False
        self.wrong: Exception | None = None

    def verify(self, _config: Any) -> str:
        if self.wrong is not None:
            raise self.wrong
        return "all"

    def remeasure(self, configs: list[Any]) -> list[Measurement | None]:
        self.asked.append([config["align_offset"] for config in configs])
        return self.turns

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    fake = FakeBackend({3: timed(1.0), 1: timed(5.0)}, [timed(2.0), timed(4.0)])

    def try_one(_backend: Any, _task: Any, config: Any) -> Any:
        found = fake.alone[config["align_offset"]]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(MODULE, "make_backend", lambda _runner, _task: fake)
    monkeypatch.setattr(MODULE, "try_one", try_one)
    return fake


def winner(**changes: Any) -> Record:
    return make_record(**({"config": WINNER, "runner": "cuda", "median": 1.0} | changes))


def test_the_two_take_turns_and_those_times_count(backend: FakeBackend) -> None:
    found = check(winner())
    assert backend.asked == [[3, 1]]
    assert found.ratio == 0.5
    assert found.warning is None
    assert backend.closed
    backend.turns = [None, None]
    assert check(winner()).ratio == 0.2


@pytest.mark.parametrize(
    ("default", "warning"),
    [
        (1.0, ""),
        (0.996, ""),
        (0.99, "no longer wins: its time is 1.010 of the default's; tune it again."),
    ],
)
def test_a_default_within_the_noise_is_not_faster(
    backend: FakeBackend, default: float, warning: str
) -> None:
    backend.turns = [timed(1.0), timed(default)]
    assert (check(winner()).warning or "").endswith(warning)
    assert bool(check(winner()).warning) == bool(warning)


def test_a_winner_that_is_the_default_is_not_run_twice(backend: FakeBackend) -> None:
    found = check(winner(config=DEFAULT))
    assert found.ratio == 1.0
    assert backend.asked == []


def test_a_default_that_fails_is_no_reason_to_warn(backend: FakeBackend) -> None:
    backend.alone = {3: timed(1.0), 1: ReportedError("BuildError: too many registers")}
    found = check(winner())
    assert (found.default, found.ratio, found.warning) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ReportedError("TrialTimeoutError: It hangs."), "TrialTimeoutError: It hangs."),
        (ValueError("Odd."), "ValueError: Odd."),
    ],
)
def test_a_winner_that_fails_or_is_wrong_warns(
    backend: FakeBackend, error: Exception, text: str
) -> None:
    backend.wrong = error
    found = check(winner())
    assert found.warning is not None
    assert found.warning.endswith(f"fails now: {text}")
    assert backend.closed


@pytest.mark.parametrize("again", [check, replay])
def test_a_modelled_record_is_modelled_again_and_a_servers_is_measured_here(
    again: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def stop(runner: str, _task: Any) -> None:
        asked.append(runner)
        raise TargetError("Seen.")

    monkeypatch.setattr(MODULE, "make_backend", stop)
    away = winner(runner="rpc", server="a:9090")
    for record, runner in ((make_record(), "auto"), (away, "auto"), (make_record(), "cuda")):
        with pytest.raises(TargetError, match="Seen"):
            again(record, runner)
    assert asked == ["simulate", "auto", "cuda"]


def test_a_modelled_default_that_is_cheaper_at_all_is_told() -> None:
    before, after = (Measurement(0, {"cost": cost}) for cost in (100.1, 100.0))
    found = Checked(make_record(), "simulate", before, after)
    assert found.warning is not None
    assert "its modelled cost is 1.001 of the default's" in found.warning


def test_a_default_that_is_older_than_a_knob_is_still_the_default() -> None:
    task = make_task("gemm", (512, 512, 256), "float16")
    older = {n: v for n, v in task.space.default().items() if n not in ("split_k", "cluster")}
    record = make_record(workload=task.workload, config=older)
    nothing = FakeBackend({}, [])
    found = MODULE._against_default(record, nothing, task, timed(1.0))
    assert found == Checked(record, "cuda", timed(1.0), timed(1.0))
    assert nothing.asked == []
