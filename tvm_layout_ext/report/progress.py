"""Progress of a long command: a bar on a terminal, else at most one line a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..tune.records import Record
from .tuning import score_text

__all__ = ["trial_progress"]

Callback = Callable[[Record, int, int], None]
_SECONDS_BETWEEN_LINES = 1.0


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
        Where to show it.
    """
    best = _Best()
    if not console.is_terminal:
        yield _plain(console, best)
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
        pace = _Pace()

        def show(record: Record, done: int, total: int) -> None:
            text, rate = best.update(record), pace.update(done)
            bar.update(
                task, completed=done, total=total, best=text, rate=f"{rate:.2g}/s" if rate else ""
            )

        yield show


def _plain(console: Console, best: _Best) -> Callback:
    printed = 0.0
    pace = _Pace()

    def show(record: Record, done: int, total: int) -> None:
        nonlocal printed
        text, rate, now = best.update(record), pace.update(done), time.monotonic()
        if now - printed < _SECONDS_BETWEEN_LINES and done < total:
            return
        printed = now
        about = f", {rate:.2g} trials/s, about {(total - done) / rate:.0f} s left" if rate else ""
        console.print(f"trial {done} of {total}, best {text}{about}")

    return show
