"""``report``: a log as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import LayoutError
from .app import command
from .shared import AsJson, Log, print_json, some_records, write_text


@command()
def report(
    log: Log,
    out: Annotated[Path, typer.Option("-o", "--out", help="The .html file to write.")] = Path(
        "report.html"
    ),
    png: Annotated[
        Path | None, typer.Option(help="Folder for the curves as PNG files, too.")
    ] = None,
    kernels: Annotated[
        bool,
        typer.Option(
            help="Build default and winner again, to explain and draw them: seconds each."
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a page on a log: curves, all trials, winners and their kernels; it needs no network."""
    from ..report.page import render_page, workloads, write_plots
    from ..tune.apply.programs import Programs

    if out.suffix != ".html":
        raise LayoutError(f"A report is written to a .html file, not to {out}.")
    if not out.parent.is_dir():
        raise LayoutError(f"Cannot write {out}: there is no folder {out.parent}.")
    reading = some_records(log)
    programs, skipped = Programs(log), reading.warning or ""
    shown = workloads(reading.records, kernels=kernels, told=_tell, programs=programs)
    write_text(out, render_page(str(log), shown, skipped), err=as_json)
    if png is not None:
        for path in write_plots(png, shown):
            typer.echo(f"Wrote {path}.", err=as_json)
    if as_json:
        print_json(shown)


def _tell(title: str) -> None:
    typer.echo(f"Reading {title}.", err=True)
