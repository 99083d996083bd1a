"""The application that each file of this folder adds its command to."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from ..errors import LayoutExtError
from .codes import BAD_INPUT

app = typer.Typer(
    help="Memory layout for Apache TVM schedules: tune, replay and explain kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Command(TyperCommand):
    """Takes ``--shape 64 32``, and says what is wrong with its input in one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line."""
        return super().parse_args(ctx, join_shapes(args))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of this package ends it with code 2."""
        try:
            return super().invoke(ctx)
        except LayoutExtError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None


def join_shapes(args: list[str]) -> list[str]:
    """Make one word of the numbers after ``--shape``: typer's options take one."""
    joined: list[str] = []
    for arg in args:
        number = re.fullmatch(r"[-+]?[\d.]+", arg) is not None
        if number and joined and joined[-1].startswith("--shape="):
            joined[-1] += f" {arg}"
        elif joined and joined[-1] == "--shape" and not arg.startswith("--"):
            joined[-1] = f"--shape={arg}"
        else:
            joined.append(arg)
    return joined
