"""``bench``: run all stored winners again, or a suite of benchmarks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import ScheduleError
from .app import FAILED, command
from .shared import (
    AsJson,
    Key,
    RunnerName,
    Tracker,
    make_console,
    print_json,
    runner_text,
    winners_of,
)

if TYPE_CHECKING:
    from ..tune.apply.replay import Replay
    from ..tune.records.log import Record
    from ..tune.space.operator import Operator


#: The scripts of the suites, which are in a clone of the repository and not in what pip installs.
_SCRIPTS = Path(__file__).parents[2] / "benchmarks"


@command()
def bench(
    log: Annotated[
        Path | None, typer.Argument(help="Folder of a log, or one of its *.jsonl files.")
    ] = None,
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
    suite: Annotated[
        str,
        typer.Option(
            help="Run a suite of benchmarks beside torch, Triton and dlight in place of a log: "
            "gemm, memory, norm, attention, conv or models. Minutes; needs a GPU and torch."
        ),
    ] = "",
    plot: Annotated[Path | None, typer.Option(help="PNG file to draw a suite to.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run every workload's winner again, or a suite of benchmarks, and table the times."""
    from ..report.tuning import bench_table

    if (log is None) == (not suite):
        raise ScheduleError("Give either a log, whose winners are run again, or --suite NAME.")
    if suite and as_json:
        raise ScheduleError("--json goes with a log; a suite writes its table and --plot.")
    if suite:
        raise typer.Exit(_run_suite(suite, plot))
    assert log is not None
    where = runner_text(runner, tracker, key)
    winners, _ = winners_of(log, "to run")
    again = [_replayed(*winner, where) for winner in winners]
    found = [one for one in again if one is not None]
    if as_json:
        print_json(found)
    else:
        make_console().print(bench_table(found))
    if None in again:
        raise typer.Exit(FAILED)


def _run_suite(name: str, plot: Path | None) -> int:
    """Run a suite's script; its exit code."""
    if not (_SCRIPTS / "suites.py").exists():
        raise ScheduleError(
            f"The suites are scripts of the repository, and {_SCRIPTS} is not there: run this in a "
            "clone of it."
        )
    command = [sys.executable, "-m", "benchmarks.suites", "--", name]
    if plot is not None:
        if plot.suffix != ".png" or not plot.parent.is_dir():
            raise ScheduleError(f"A plot is a .png file in a folder that is there, not {plot}.")
        command[3:3] = ["--plot", str(plot.resolve())]
    return subprocess.run(command, cwd=_SCRIPTS.parent, check=False).returncode


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
