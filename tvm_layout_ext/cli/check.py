"""``check``: whether stored winners still win."""

from __future__ import annotations

import typer

from .app import FAILED, command
from .shared import (
    AsJson,
    Key,
    Log,
    RunnerName,
    Tracker,
    make_console,
    print_json,
    runner_text,
    winners_of,
)


@command()
def check(
    log: Log,
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Time each workload's winner against the default schedule again; warn if it no longer wins.

    Ends with code 1 if a default is now faster, or a winner fails, gives a wrong result or cannot
    be run, as its program is missing.
    """
    from ..report.tuning import checked_table
    from ..tune.apply.replay import check as run

    where = runner_text(runner, tracker, key)
    winners, missing = winners_of(log, "to check")
    checked = [run(record, where, operator) for record, operator in winners]
    if as_json:
        print_json(checked)
    else:
        make_console().print(checked_table(checked))
        for one in checked:
            if one.default_failure:
                why = f"no default to compare with: {one.default_failure}"
                typer.echo(f"{one.record.workload}: {why}")
    warnings = [one.warning for one in checked if one.warning]
    for warning in warnings:
        typer.echo(f"Warning: {warning}", err=True)
    if warnings or missing:
        raise typer.Exit(FAILED)
