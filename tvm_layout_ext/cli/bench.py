"""``bench``: run all stored winners again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from .app import Command, app
from .codes import EPILOG, FAILED
from .shared import Key, Log, RunnerName, Tracker, make_console, runner_text, winners_of

if TYPE_CHECKING:
    from ..tune.apply.replay import Replay
    from ..tune.records.log import Record
    from ..tune.space.operator import Operator


@app.command(cls=Command, epilog=EPILOG)
def bench(
    log: Log,
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
) -> None:
    """Run every workload's winner again and table its score beside the recorded one."""
    from ..report.tuning import bench_table

    where = runner_text(runner, tracker, key)
    winners, _ = winners_of(log, "to run")
    again = [_replayed(*winner, where) for winner in winners]
    make_console().print(bench_table([one for one in again if one is not None]))
    if None in again:
        raise typer.Exit(FAILED)


def _replayed(record: Record, operator: Operator, runner: str) -> Replay | None:
    """A winner's replay; None, with the reason on stderr, if it fails."""
    from ..errors import RecordError
    from ..tune.apply.replay import replay
    from ..tune.measure.backend import ReportedError
    from ..tune.measure.reference.problem import WrongResultError

    try:
        return replay(record, runner, operator)
    except (RecordError, ReportedError, WrongResultError) as error:
        typer.echo(f"{record.workload}, record {record.id}: {error}", err=True)
        return None
