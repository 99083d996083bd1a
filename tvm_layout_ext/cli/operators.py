"""``operators``: what can be tuned by name."""

from __future__ import annotations

import typer

from ..text import columns
from .app import command
from .shared import AsJson, print_json


@command()
def operators(as_json: AsJson = False) -> None:
    """List the ready operators: the numbers of their shapes, and their element types."""
    from ..tune.space.operator import find_operator, known_operators

    found = [find_operator(name) for name in known_operators()]
    if as_json:
        print_json([{"name": o.name, "shape": o.dims, "dtypes": o.dtypes} for o in found])
        return
    rows = [[one.name, " ".join(one.dims), ", ".join(one.dtypes)] for one in found]
    typer.echo(columns(("operator", "--shape", "--dtype"), rows))
