"""Plain-text tables, and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def columns(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Set rows in columns under their heads; a column of numbers is set to the right."""
    table = [list(heads), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    right = [_numeric([row[i] for row in rows]) for i in range(len(heads))]
    lines = [
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in table
    ]
    return "\n".join(lines)


#: Lines, and letters of a line, that ``str`` of a result has.
MOST_LINES = 10
_MOST_LETTERS = 300


def brief(parts: Iterable[str], rest: str) -> str:
    """Join the parts, each whole or left out, to ten lines of which the last is ``rest``."""
    said: list[str] = []
    for part in parts:
        if len(said) + part.count("\n") + 1 < MOST_LINES:
            said += part.split("\n")
    cut = (line if len(line) < _MOST_LETTERS else f"{line[:_MOST_LETTERS]}..." for line in said)
    return "\n".join([*cut, rest])


def _numeric(cells: Sequence[str]) -> bool:
    return bool(cells) and all(cell[:1].isdigit() or cell in ("", "-") for cell in cells)


def number(value: float) -> str:
    """A number for people, of about four digits: ``1,234``, ``12.35``, ``0.0123``."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 12)}f}".rstrip("0").rstrip(".") if digits else f"{value:,.0f}"


def shortened(text: str, most: int = 60) -> str:
    """Leave out the middle of a longer text."""
    end = (most - 5) // 2
    return text if len(text) <= most else f"{text[: most - 5 - end]} ... {text[-end:]}"


def suggestion(word: str, known: Iterable[str]) -> str:
    """Ask for the known word that a wrong one resembles; nothing if there is none.

    Examples
    --------
    >>> suggestion("transposee", ["gemm", "transpose"]), suggestion("x", ["gemm"])
    (" Did you mean 'transpose'?", '')
    """
    found = get_close_matches(word.lower(), list(known), 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def lines_of(error: Exception) -> list[str]:
    """The lines of an error's text, at least one: the name of its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()
