from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.report.progress import trial_progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which a test moves on."""
    now = [100.0]
    monkeypatch.setattr("tvm_layout_ext.report.progress.time.monotonic", lambda: now[0])
    return now


def test_without_a_terminal_there_is_one_line_a_second_and_the_last(clock: list[float]) -> None:
    out = io.StringIO()
    with trial_progress(Console(file=out, width=120)) as show:
        for done in range(1, 21):
            show(make_record(conflict_model=make_model(cost=30.0 - done)), done, 20)
            clock[0] += 0.25
    lines = out.getvalue().splitlines()
    assert lines[0] == "trial 1 of 20, best 29"
    assert lines[1] == "trial 5 of 20, best 25, 4 trials/s, about 4 s left"
    assert [line.split()[1] for line in lines] == ["1", "5", "9", "13", "17", "20"]
    assert lines[-1] == "trial 20 of 20, best 10, 4 trials/s, about 0 s left"


def test_trials_from_the_log_do_not_count_before_the_first_look(clock: list[float]) -> None:
    """The pace is that since the first trial told, however many were done by then."""
    out = io.StringIO()
    with trial_progress(Console(file=out, width=120)) as show:
        show(make_record(), 40, 60)
        clock[0] += 10.0
        show(make_record(), 50, 60)
    assert out.getvalue().splitlines()[1].endswith("1 trials/s, about 10 s left")


def test_a_failed_trial_is_no_best(clock: list[float]) -> None:
    out = io.StringIO()
    with trial_progress(Console(file=out, width=120)) as show:
        show(make_record(status="error", error_class="X", error_text="y"), 1, 1)
    assert out.getvalue() == "trial 1 of 1, best none yet\n"


def test_on_a_terminal_a_bar_has_pace_and_best() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    with trial_progress(console) as show:
        show(make_record(conflict_model=make_model(cost=7.0)), 1, 2)
        show(make_record(conflict_model=make_model(cost=5.0)), 2, 2)
    text = out.getvalue()
    assert "2/2" in text
    assert "best 5" in text
    assert "/s" in text
