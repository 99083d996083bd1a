"""``export``: a tuned kernel as a library of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RecordError
from .app import command
from .shared import AsJson, Log, print_json, read_log, target_of


@command()
def export(
    log: Log,
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="Path without a suffix; its last part names the function."
        ),
    ],
    record_id: Annotated[
        str, typer.Option("--id", help="Start of a record's id; by default the log's one winner.")
    ] = "",
    arch: Annotated[
        str, typer.Option(help="Architecture to compile for; by default the record's own.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Write a winner as libOUT.so with a C header, a DLPack loader for Python and its CUDA source.

    Needs nvcc, and no GPU.
    """
    from ..tune.apply.programs import Programs
    from ..tune.apply.replay import best_records, find_record
    from ..tune.export.export import export as run

    records = read_log(log).records
    winners = [find_record(records, record_id)] if record_id else best_records(records)
    if len(winners) != 1:
        names = ", ".join(f"{r.id} ({r.workload})" for r in winners) or "none"
        raise RecordError(f"{log} has {len(winners)} winners, {names}; choose one with --id.")
    operator = Programs(log).operator(winners[0])
    made = run(winners[0], out, target=target_of(arch), operator=operator)
    if as_json:
        print_json(made)
        return
    typer.echo(f"Wrote {made.library}, {made.header}, {made.loader} and {made.source}.")
