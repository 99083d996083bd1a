"""``best``: the best record of each workload."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import RecordError
from .app import FAILED, command
from .shared import AsJson, Log, make_console, print_command, print_json, read_log


@command()
def best(
    log: Log,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each kernel too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the best record of each workload."""
    from ..report.tuning import best_table
    from ..tune.apply.programs import Programs
    from ..tune.apply.replay import best_records

    records = best_records(read_log(log).records)
    if not records:
        typer.echo(f"No trial in {log} worked.", err=True)
        raise typer.Exit(FAILED)
    if as_json:
        print_json([record.to_json() for record in records])
        return
    make_console().print(best_table(records))
    programs = Programs(log)
    for record in records:
        try:
            operator = programs.operator(record)
        except RecordError as error:
            typer.echo(f"\n{error}")
            continue
        typer.echo("")
        print_command("replay", str(log), "--id", record.id)
        if explain:
            from ..report.winner import explain_record

            told, shape = explain_record(record, operator)
            cut = f", counted at {'x'.join(map(str, shape))}"
            where = cut if shape != tuple(record.workload.shape) else ""
            typer.echo(f"\n{record.workload}, {record.id}{where}:\n{told.text()}")
