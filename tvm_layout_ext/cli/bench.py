"""``bench``: run all stored winners again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ..errors import RecordError
from .app import Command, app
from .codes import EPILOG, FAILED
from .shared import Key, Log, RunnerName, Tracker, make_console, read_log, runner_text

if TYPE_CHECKING:
    from ..tune.records import Record
    from ..tune.replay import Replay

__all__ = ["bench"]


@app.command(cls=Command, epilog=EPILOG)
def bench(log: Log, runner: RunnerName = "auto", tracker: Tracker = "", key: Key = "") -> None:
    """Run every workload's winner again and table its score beside the recorded one."""
    from ..report.recheck import bench_table
    from ..tune.replay import best_records

    where = runner_text(runner, tracker, key)
    winners = best_records(read_log(log))
    if not winners:
        raise RecordError(f"No trial in {log} worked, so there is no winner to run.")
    again = [_replayed(record, where) for record in winners]
    make_console().print(bench_table([one for one in again if one is not None]))
    if None in again:
        raise typer.Exit(FAILED)


def _replayed(record: Record, runner: str) -> Replay | None:
    """A winner's replay; None, with the reason on stderr, if it fails."""
    from ..tune.backend import ReportedError
    from ..tune.replay import replay
    from ..tune.verify import WrongResultError

    try:
        return replay(record, runner)
    except (RecordError, ReportedError, WrongResultError) as error:
        typer.echo(f"{record.workload}, record {record.id}: {error}", err=True)
        return None
