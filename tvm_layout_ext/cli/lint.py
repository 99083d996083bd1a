"""``lint``: hold the kernels of a file or module to rules."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from .app import FAILED, command
from .shared import Arch, Sizes, Variable, parse_sizes, target_of


class Format(str, Enum):
    """How findings are written."""

    text = "text"
    json = "json"
    github = "github"


@command()
def lint(
    source: Annotated[str, typer.Argument(help="Python file, TVMScript text, or a module's name.")],
    name: Variable = "",
    size: Sizes = None,
    arch: Arch = "",
    bank_conflicts: Annotated[int, typer.Option(help="The most that there may be.")] = 0,
    hazards: Annotated[int, typer.Option(help="The most that there may be.")] = 0,
    min_vector_bytes: Annotated[
        int, typer.Option(help="Least bytes of a lane where its tensor allows them; 1 is any.")
    ] = 16,
    max_sectors_ratio: Annotated[
        float, typer.Option(help="Most sectors over the least that the bytes need.")
    ] = 1.05,
    blocks: Annotated[int, typer.Option(help="How many blocks to simulate; 0 is all.")] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    format_: Annotated[
        Format, typer.Option("--format", help="github: annotations of a pull request.")
    ] = Format.text,
) -> None:
    """Hold all kernels of a file to rules of memory access; ends with code 1 if one is broken.

    Runs on the simulated GPU: no GPU and no compiler are needed.
    """
    from ..report.lint import Rules
    from ..report.lint import as_json as written
    from ..report.lint import lint as run
    from ..report.load import load_all

    rules = Rules(bank_conflicts, hazards, min_vector_bytes, max_sectors_ratio)
    values = parse_sizes(size)
    path, kernels = load_all(source, name or None)
    found = {
        key: run(
            kernel, args, rules, values=values, target=target_of(arch), grid_sample=blocks or None
        )
        for key, (kernel, args) in kernels.items()
    }
    if as_json or format_ is Format.json:
        typer.echo(written(found))
    for key, findings in found.items():
        if as_json or format_ is Format.json:
            break
        for one in findings:
            at = _line_of(path, one.block or one.buffer)
            typer.echo(
                one.as_github(str(path), at) if format_ is Format.github else f"{key}: {one}"
            )
        if not findings and format_ is Format.text:
            typer.echo(f"{key}: no findings")
    if any(found.values()):
        raise typer.Exit(FAILED)


def _line_of(path: Path, name: str) -> int:
    """Line of a file that names a block or a buffer in quotes; else the first."""
    names = rf"[\"']{re.escape(name)}[\"']|\b{re.escape(name)}\s*="
    for number, line in enumerate(path.read_text().split("\n"), 1):
        if re.search(names, line):
            return number
    return 1
