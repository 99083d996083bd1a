"""``simulate``: run a file's kernel on the simulated GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from .app import FAILED, command
from .shared import Arch, AsJson, Sizes, Source, Variable, parse_sizes, print_json, target_of


@command()
def simulate(
    file: Source,
    name: Variable = "",
    size: Sizes = None,
    arch: Arch = "",
    as_json: AsJson = False,
    blocks: Annotated[int, typer.Option(help="Blocks to run; 0 runs all.")] = 0,
) -> None:
    """Run a kernel on random inputs: counters of every access, races, unwritten memory.

    Ends with code 1 if there is a hazard.
    """
    from ..build import to_module
    from ..report.explain import draw_arguments
    from ..report.load import load_file
    from ..simulation import simulate as run

    values = parse_sizes(size)
    source, args = load_file(file, name or None)
    module = to_module(source, args)
    arrays = draw_arguments(module, values)
    report = run(module, *arrays, target=target_of(arch), grid_sample=blocks or None)
    if as_json:
        print_json(report.to_json())
    else:
        typer.echo(report.text())
    if report.hazards:
        raise typer.Exit(FAILED)
