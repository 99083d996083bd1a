"""``compare``: the winners of two logs beside each other."""

from __future__ import annotations

import typer

from .app import command
from .shared import AsJson, Log, make_console, print_json, some_records


@command()
def compare(before: Log, after: Log, as_json: AsJson = False) -> None:
    """Compare the best kernels of two logs: scores, their ratio, and the knobs that differ."""
    from ..report.logs import compare_logs, pairs_table

    found = compare_logs(
        (some_records(before).records, some_records(after).records), (str(before), str(after))
    )
    if as_json:
        print_json({"pairs": found.pairs, "remarks": found.remarks})
        return
    make_console().print(pairs_table(found))
    for line in found.remarks:
        typer.echo(line)
