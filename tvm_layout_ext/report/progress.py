"""Progress of a long command: a bar on a terminal, elsewhere nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..tune.records.log import Record
from .tuning import score_text

__all__ = ["trial_progress"]

Callback = Callable[[Record, int, int], None]


class _Best:
    """The best score so far, as text."""

    def __init__(self) -> None:
        self._record: Record | None = None

    def update(self, record: Record) -> str:
        """Take another trial into account."""
        score, best = record.score, self._record
        if score is not None and (best is None or score < (best.score or 0.0)):
            self._record = record
        return score_text(self._record) if self._record else "none yet"


class _Pace:
    """Trials a second.

    The first trial is no measure: the space was enumerated and TVM warmed up before it.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._before = 0

    def update(self, done: int) -> float | None:
        """The pace since the first call; None before the second."""
        now = time.monotonic()
        if self._first is None:
            self._first, self._before = now, done
            return None
        return (done - self._before) / max(now - self._first, 1e-6)


@contextmanager
def trial_progress(console: Console) -> Iterator[Callback]:
    """Give the callback to hand to ``tune`` as its ``progress``.

    Parameters
    ----------
    console : rich.console.Console
        Where to show it; where that is no terminal, as in a pipe or in CI, nothing is.
    """
    if not console.is_terminal:
        yield lambda _record, _done, _total: None
        return
    bar = Progress(
        TextColumn("tuning"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        TextColumn("best {task.fields[best]}"),
        console=console,
    )
    with bar:
        task = bar.add_task("tune", total=None, best="none yet", rate="")
        best, pace = _Best(), _Pace()

        def show(record: Record, done: int, total: int) -> None:
            text, rate = best.update(record), pace.update(done)
            bar.update(
                task, completed=done, total=total, best=text, rate=f"{rate:.2g}/s" if rate else ""
            )

        yield show
