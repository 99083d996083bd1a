"""Progress of a long command: a bar on a terminal, elsewhere nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..tune.records.log import Record
from .tuning import score_text

Callback = Callable[[Record, int, int], None]


@contextmanager
def trial_progress(console: Console) -> Iterator[Callback]:
    """Give the callback to hand to ``tune`` as its ``progress``.

    Where the console is no terminal, as in a pipe or in CI, nothing is shown.
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
        best: list[Record] = []
        started: list[tuple[float, int]] = []

        def show(record: Record, done: int, total: int) -> None:
            if record.score is not None:
                best[:] = [min(*best, record, key=lambda one: one.score or 0.0) if best else record]
            now = time.monotonic()
            # The first trial is no measure: the space was enumerated and TVM warmed up before it.
            rate = ""
            if started:
                since, before = started[0]
                rate = f"{(done - before) / max(now - since, 1e-6):.2g}/s"
            else:
                started.append((now, done))
            text = score_text(best[0]) if best else "none yet"
            bar.update(task, completed=done, total=total, best=text, rate=rate)

        yield show
