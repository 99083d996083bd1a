"""``bench``: run all stored winners again, or rank a sweep by the models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .app import Command, app
from .codes import EPILOG, FAILED
from .shared import Key, Log, RunnerName, Tracker, make_console, runner_text, winners_of

if TYPE_CHECKING:
    from ..tune.apply.replay import Replay
    from ..tune.records.log import Record
    from ..tune.space.operator import Operator

__all__ = ["bench"]

#: Candidates of a sweep for the closed form, which takes some 30 ms each.
MODELLED = 300


@app.command(cls=Command, epilog=EPILOG)
def bench(
    log: Log,
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
    candidates: Annotated[
        int, typer.Option(min=2, help="Of a sweep, to simulate: seconds each.")
    ] = 48,
) -> None:
    """Run every workload's winner again and table its score beside the recorded one.

    Of a sweep's file, tell instead how well both models order its candidates.
    """
    from benchmarks.sweep_file import Sweep

    from ..report.recheck import bench_table

    if Sweep.is_one(log):
        _rank(log, candidates)
        return
    where = runner_text(runner, tracker, key)
    winners, _ = winners_of(log, "to run")
    again = [_replayed(*winner, where) for winner in winners]
    make_console().print(bench_table([one for one in again if one is not None]))
    if None in again:
        raise typer.Exit(FAILED)


def _rank(path: Path, candidates: int) -> None:
    """Print Spearman's correlation of both models with a sweep's measured medians."""
    from benchmarks.rank_correlation import correlations
    from benchmarks.sweep_file import Sweep

    header = Sweep.read(path).header
    found = correlations(path, MODELLED, candidates, os.cpu_count() or 1)
    typer.echo(f"{header.workload}, medians of {header.device}: Spearman's correlation with")
    for name, key in (("the simulator's cost", "simulator"), ("the closed form", "latency")):
        one = found[key]
        value = "not known, as one side does not vary"
        if one["spearman"] is not None:
            value = f"{one['spearman']:.2f}"
        typer.echo(f"  {name}: {value} ({one['candidates']} random candidates)")


def _replayed(record: Record, operator: Operator, runner: str) -> Replay | None:
    """A winner's replay; None, with the reason on stderr, if it fails."""
    from ..errors import RecordError
    from ..tune.apply.replay import replay
    from ..tune.measure.backend import ReportedError
    from ..tune.measure.verify import WrongResultError

    try:
        return replay(record, runner, operator)
    except (RecordError, ReportedError, WrongResultError) as error:
        typer.echo(f"{record.workload}, record {record.id}: {error}", err=True)
        return None
