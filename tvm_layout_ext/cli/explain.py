"""``explain``: what a kernel's accesses and pipelines do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import LayoutError, ScheduleError
from .app import Command, app
from .codes import EPILOG
from .shared import Sizes, Source, Variable, parse_sizes, write_text


@app.command(cls=Command, epilog=EPILOG)
def explain(
    file: Source,
    name: Variable = "",
    size: Sizes = None,
    blocks: Annotated[int, typer.Option(help="How many blocks to simulate; 0 is all.")] = 4,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Draw the pipelined loops instead: what runs when.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Write the drawing of --pipeline to this .svg file, too."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw which lane meets which bank into this .svg file.")
    ] = None,
) -> None:
    """Print a table of what a kernel loads and stores: width, sectors, bank conflicts."""
    from ..report.banks import bank_picture
    from ..report.explain import explain as run
    from ..report.load import load_file

    values = parse_sizes(size)
    source, args = load_file(file, name or None)
    if pipeline:
        _chart(source, args, out)
        return
    if out is not None:
        raise ScheduleError("Only the chart of --pipeline is written to a file.")
    if picture is not None and picture.suffix != ".svg":
        raise LayoutError(f"A picture of banks is written to a .svg file, not to {picture}.")
    explained = run(source, args, values=values, grid_sample=blocks or None)
    typer.echo(explained)
    if picture is not None:
        write_text(picture, bank_picture(explained.banks))


def _chart(source: Any, args: Any, out: Path | None) -> None:
    """Print the chart of a program's pipelines; draw it if there is a file."""
    from ..report.pipeline_chart import explain_pipeline

    if out is not None and out.suffix != ".svg":
        raise ScheduleError(f"A chart is written to a .svg file, not to {out}.")
    found = explain_pipeline(source, args)
    typer.echo(found)
    if out is not None:
        write_text(out, found.svg())
