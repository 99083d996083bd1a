"""``layout``: the picture of a layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import LayoutError
from .app import command
from .shared import AsJson, Shape, parse_shape, print_json, write_text


@command()
def layout(
    text: Annotated[str, typer.Argument(help="A layout's text, e.g. 'BlockedLayout(...)'.")],
    shape: Shape = "",
    view: Annotated[
        str,
        typer.Option(
            help="tensor: which thread holds each element; hardware: what each thread holds; bank: "
            "which bank each element lies in."
        ),
    ] = "tensor",
    bits: Annotated[
        int | None,
        typer.Option(
            help="Bits of an element, for --view bank; by default what the layout says, or 32."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write a .svg or .html picture here.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Draw where a layout puts the elements of a tensor."""
    from ..layout import Layout, parse

    parsed = parse(text)
    if not isinstance(parsed, Layout):
        raise LayoutError(
            "A LinearLayout alone does not say what its dims mean; write DistributedLinear(...)."
        )
    kind = "text" if out is None else out.suffix.removeprefix(".")
    if kind not in ("text", "svg", "html"):
        raise LayoutError(f"A picture is written to a .svg or .html file, not to {out}.")
    if not shape:
        raise LayoutError(
            f"--shape is missing, the sizes of the tensor that {parsed} lays out, as --shape 16 32."
        )
    sizes = parse_shape(shape)
    drawn = parsed.render(sizes, kind=kind, view=view, element_bits=bits)
    if out is not None:
        write_text(out, drawn, err=as_json)
    if as_json:
        linear = parsed.to_linear(sizes)
        bases = {name: linear.basis(name) for name in linear.in_dims}
        print_json({"layout": str(parsed), "sizes": linear.out_sizes, "bases": bases})
    elif out is None:
        typer.echo(drawn)
