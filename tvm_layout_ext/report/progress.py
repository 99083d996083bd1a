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
        TimeRemainingColumn(),
        TextColumn("best {task.fields[best]}"),
        console=console,
    )
    with bar:
        task = bar.add_task("tune", total=None, best="none yet")

        def show(record: Record, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, best=best.update(record))

        yield show


def _plain(console: Console, best: _Best) -> Callback:
    first = printed = 0.0

    def show(record: Record, done: int, total: int) -> None:
        nonlocal first, printed
        text, now = best.update(record), time.monotonic()
        first = first or now
        if now - printed < _SECONDS_BETWEEN_LINES and done < total:
            return
        printed = now
        # The first trial is no measure: the space was enumerated and TVM warmed up before it.
        left = (now - first) / max(done - 1, 1) * (total - done)
        about = f", about {left:.0f} s left" if done > 1 else ""
        console.print(f"trial {done} of {total}, best {text}{about}")

    return show
