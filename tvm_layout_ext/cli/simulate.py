"""``simulate``: run a file's kernel on the simulated GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import Command, app
from .codes import EPILOG, FAILED
from .explain import parse_sizes


@app.command(cls=Command, epilog=EPILOG)
def simulate(
    file: Annotated[Path, typer.Argument(help="Python file with a schedule, or TVMScript text.")],
    name: Annotated[
        str, typer.Option(help="Which variable of the file, if there are several.")
    ] = "",
    size: Annotated[
        list[str] | None, typer.Option(help="Value of a symbolic size: --size n=256. Repeatable.")
    ] = None,
    blocks: Annotated[int, typer.Option(help="Blocks to run; 0 runs all.")] = 0,
) -> None:
    """Run a kernel on random inputs: counters of every access, races, unwritten memory.

    Ends with code 1 if there is a hazard.
    """
    from ..build import to_module
    from ..report.explain import draw_arguments
    from ..report.load import load_file
    from ..simulation import simulate as run

    values = parse_sizes(size or [])
    source, args = load_file(file, name or None)
    module = to_module(source, args)
    report = run(module, *draw_arguments(module, values), grid_sample=blocks or None)
    typer.echo(report)
    if report.hazards:
        raise typer.Exit(FAILED)
