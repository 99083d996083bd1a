"""``replay``: run recorded configurations again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .app import FAILED, command
from .shared import (
    AsJson,
    Key,
    Log,
    RunnerName,
    Tracker,
    print_json,
    read_log,
    runner_text,
    winners_of,
)

if TYPE_CHECKING:
    from ..tune.apply.replay import Replay
    from ..tune.records.log import Record
    from ..tune.space.operator import Operator


@command()
def replay(
    log: Log,
    record_id: Annotated[
        str, typer.Option("--id", help="Start of a record's id; by default each workload's best.")
    ] = "",
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
    as_json: AsJson = False,
) -> None:
    """Run recorded configurations again, verify them, and compare with the record."""
    from ..tune.apply.programs import Programs
    from ..tune.apply.replay import find_record

    where = runner_text(runner, tracker, key)
    if record_id:
        record = find_record(read_log(log).records, record_id)
        chosen = [(record, Programs(log).operator(record))]
    else:
        chosen, _ = winners_of(log, "to replay")
    again = [_replay_one(record, operator, where, as_json) for record, operator in chosen]
    if as_json:
        print_json([one for one in again if one is not None])
    if None in again:
        raise typer.Exit(FAILED)


def _replay_one(record: Record, operator: Operator, runner: str, quiet: bool) -> Replay | None:
    """Replay a record and print what it gave; None if it is wrong."""
    from ..report.tuning import replay_lines
    from ..tune.apply.replay import replay as run
    from ..tune.measure.reference.problem import WrongResultError

    if not quiet:
        typer.echo(f"{record.id}  {record.workload} on {record.device} ({record.arch})")
    try:
        again = run(record, runner, operator)
    except WrongResultError as error:
        typer.echo(f"  wrong: {error}", err=True)
        return None
    for line in replay_lines(again) if not quiet else ():
        typer.echo(f"  {line}")
    return again
