from __future__ import annotations

import io
import re

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


def bar(out: io.StringIO) -> Console:
    return Console(file=out, width=120, force_terminal=True)


def shown(out: io.StringIO) -> str:
    """The text that a terminal was sent, without colours and movements of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", out.getvalue())


def test_without_a_terminal_nothing_is_printed() -> None:
    out = io.StringIO()
    with trial_progress(Console(file=out, width=120)) as show:
        for done in range(1, 21):
            show(make_record(conflict_model=make_model(cost=30.0 - done)), done, 20)
    assert out.getvalue() == ""


def test_trials_from_the_log_do_not_count_before_the_first_look(clock: list[float]) -> None:
    """The pace is that since the first trial told, however many were done by then."""
    out = io.StringIO()
    with trial_progress(bar(out)) as show:
        show(make_record(conflict_model=make_model(cost=5.0)), 40, 60)
        clock[0] += 10.0
        show(make_record(conflict_model=make_model(cost=7.0)), 50, 60)
    assert "50/60 1/s" in shown(out)
    assert "best 5" in shown(out).splitlines()[-1]


def test_a_failed_trial_is_no_best(clock: list[float]) -> None:
    out = io.StringIO()
    with trial_progress(bar(out)) as show:
        show(make_record(status="error", error_class="X", error_text="y"), 1, 1)
    assert "1/1" in shown(out)
    assert shown(out).rstrip().endswith("best none yet")
