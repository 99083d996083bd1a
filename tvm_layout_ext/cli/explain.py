"""``explain``: what a kernel's accesses and pipelines do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import LayoutError, ScheduleError
from .app import command
from .shared import (
    Arch,
    AsJson,
    Sizes,
    Source,
    Variable,
    parse_sizes,
    print_json,
    target_of,
    write_text,
)


@command()
def explain(
    file: Source,
    name: Variable = "",
    size: Sizes = None,
    arch: Arch = "",
    as_json: AsJson = False,
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
    """Print what a kernel loads and stores, what limits it, and what to do about that.

    Of a file with a TE-style schedule, a list `args` may name its parameters.
    """
    from ..report.banks import bank_picture
    from ..report.explain import explain as run
    from ..report.load import load_file

    values = parse_sizes(size)
    source, args = load_file(file, name or None)
    target = target_of(arch)
    if pipeline and as_json:
        raise ScheduleError("--json tells accesses; the chart of --pipeline is text or a picture.")
    if pipeline:
        _chart(source, args, out, target)
        return
    if out is not None:
        raise ScheduleError("Only the chart of --pipeline is written to a file.")
    if picture is not None and picture.suffix != ".svg":
        raise LayoutError(f"A picture of banks is written to a .svg file, not to {picture}.")
    explained = run(source, args, values=values, target=target, grid_sample=blocks or None)
    if as_json:
        print_json(explained.to_json())
    else:
        typer.echo(explained.text())
    if picture is not None:
        write_text(picture, bank_picture(explained.banks), err=as_json)


def _chart(source: Any, args: Any, out: Path | None, target: Any) -> None:
    """Print the chart of a program's pipelines; draw it if there is a file."""
    from ..report.pipeline_chart import explain_pipeline

    if out is not None and out.suffix != ".svg":
        raise ScheduleError(f"A chart is written to a .svg file, not to {out}.")
    found = explain_pipeline(source, args, target=target)
    typer.echo(found.text())
    if out is not None:
        write_text(out, found.svg())
