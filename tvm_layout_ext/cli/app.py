"""The application that each file of this folder adds its command to."""

from __future__ import annotations

import os
import re
from difflib import get_close_matches
from functools import partial
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .._compat import tvm_version
from .._interrupt import INTERRUPTED as INTERRUPTED
from .._interrupt import load
from .._version import __version__
from ..errors import LayoutExtError
from ..text import lines_of, shortened

FAILED, BAD_INPUT = 1, 2
_EPILOG = (
    "Exit codes: 0 done; 1 no candidate worked, a result was wrong or hazardous, a winner no "
    "longer wins, or a rule is broken; 2 the input cannot be used; 130 interrupted."
)
#: Commands that run neither files of the user nor PyTorch's kernels.
_WITHOUT_TORCH = ("tune", "best", "replay", "check", "compare", "operators")
#: Characters of an error.
_LONGEST = 500

app = typer.Typer(
    help="Memory layout for Apache TVM schedules: tune, replay and explain kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"tvm-layout {__version__}, TVM {tvm_version()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print versions and end."
        ),
    ] = False,
) -> None:
    """Options that come before the command."""


class Command(TyperCommand):
    """Takes ``--shape 64 32``, and says what is wrong with its input in one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words of the command line; of an option that is none, name those like it."""
        for one in args:
            if one.encode(errors="ignore").decode() != one:
                raise typer.BadParameter(f"{one!r} is no text in UTF-8.")
        try:
            return super().parse_args(ctx, join_shapes(args))
        except Exception as error:
            wrong: Any = error  # Of click, which typer may have under another name.
            if hasattr(wrong, "possibilities"):
                known = [one for option in self.params for one in option.opts if one[:2] == "--"]
                wrong.possibilities = get_close_matches(wrong.option_name, known) or known
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command; an error of this package ends it with code 2.

        So does any error that nobody foresaw, whose traceback ``TVM_LAYOUT_EXT_DEBUG=1`` shows.
        """
        try:
            load(with_torch=self.name not in _WITHOUT_TORCH)
            return super().invoke(ctx)
        except LayoutExtError as error:
            typer.echo(f"Error: {_short(str(error))}", err=True)
            raise typer.Exit(BAD_INPUT) from None
        except Exception as error:
            # What typer itself raises, such as Exit, has a code.
            if hasattr(error, "exit_code") or os.environ.get("TVM_LAYOUT_EXT_DEBUG"):
                raise
            first = lines_of(error)[0]
            typer.echo(f"Error: {type(error).__name__}: {_short(first)}", err=True)
            raise typer.Exit(BAD_INPUT) from None


#: Adds a file's command to the application.
command = partial(app.command, cls=Command, epilog=_EPILOG)


def _short(text: str) -> str:
    """A sentence in one line; of a long input that it quotes the middle is left out."""
    return shortened(" ".join(text.splitlines()), _LONGEST)


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
