"""``check``: whether stored winners still win."""

from __future__ import annotations

import typer

from ..errors import RecordError
from .app import Command, app
from .codes import EPILOG, FAILED
from .shared import Key, Log, RunnerName, Tracker, make_console, read_log, runner_text

__all__ = ["check"]


@app.command(cls=Command, epilog=EPILOG)
def check(log: Log, runner: RunnerName = "auto", tracker: Tracker = "", key: Key = "") -> None:
    """Time each workload's winner against the default schedule again; warn if it no longer wins.

    Ends with code 1 if a default is now faster, or a winner fails or gives a wrong result.
    """
    from ..report.recheck import checked_table
    from ..tune.check import check as run
    from ..tune.replay import best_records

    where = runner_text(runner, tracker, key)
    winners = best_records(read_log(log))
    if not winners:
        raise RecordError(f"No trial in {log} worked, so there is no winner to check.")
    checked = [run(record, where) for record in winners]
    make_console().print(checked_table(checked))
    warnings = [one.warning for one in checked if one.warning]
    for warning in warnings:
        typer.echo(f"Warning: {warning}", err=True)
    if warnings:
        raise typer.Exit(FAILED)
