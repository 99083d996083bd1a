"""``compare``: the winners of two logs beside each other."""

from __future__ import annotations

import typer

from .app import Command, app
from .codes import EPILOG
from .shared import Log, make_console, some_records


@app.command(cls=Command, epilog=EPILOG)
def compare(before: Log, after: Log) -> None:
    """Compare the best kernels of two logs: scores, their ratio, and the knobs that differ."""
    from ..report.logs import compare_logs, pairs_table

    found = compare_logs(
        (some_records(before).records, some_records(after).records), (str(before), str(after))
    )
    make_console().print(pairs_table(found))
    for line in found.remarks:
        typer.echo(line)
