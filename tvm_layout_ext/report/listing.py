"""The device functions as printed, with what each line asks of memory beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..simulate.report import AccessCounts, Report

#: Lines of a listing that is printed whole.
_WHOLE = 60
_HEADS = ("line", "sectors (least)", "wavefronts (least)")
_WIDTHS = (4, 17, 18)


def listing(report: Report, *, is_whole: bool = True) -> str:
    """Number the lines, and count sectors and wavefronts of the blocks that were run.

    A long listing that is not to be whole has the lines that access memory, and dots for others.
    """
    script = report.script.split("\n")
    is_whole = is_whole or len(script) <= _WHOLE
    return numbered(script, counted_lines(report), is_whole=is_whole)


def counted_lines(report: Report) -> dict[int, list[AccessCounts]]:
    """The accesses of global and shared memory by their line."""
    by_line: dict[int, list[AccessCounts]] = {}
    for access in report.accesses:
        if access.scope in ("global", "shared", "shared.dyn"):
            by_line.setdefault(access.site.line, []).append(access)
    return by_line


def numbered(
    lines: Sequence[str], counted: Mapping[int, list[AccessCounts]], *, is_whole: bool = True
) -> str:
    """Lines by their number from 1, with the sums of what was counted there."""
    rows, dots = [_row(*_HEADS, "")], _row("...", "", "", "")
    for number, text in enumerate(lines, 1):
        found = counted.get(number, [])
        if is_whole or found:
            rows.append(_row(str(number), _sectors(found), _wavefronts(found), text))
        elif rows[-1] != dots:
            rows.append(dots)
    return "\n".join(rows)


def _row(*cells: str) -> str:
    *counts, text = cells
    heads = "  ".join(cell.rjust(width) for cell, width in zip(counts, _WIDTHS, strict=True))
    return f"{heads}  {text}".rstrip()


def _sectors(found: list[AccessCounts]) -> str:
    least = sum(a.ideal_sectors for a in found)
    return f"{sum(a.sectors for a in found):,} ({least:,})" if least else ""


def _wavefronts(found: list[AccessCounts]) -> str:
    total = sum(a.wavefronts for a in found)
    least = total - sum(a.bank_conflicts for a in found)
    return f"{total:,} ({least:,})" if total else ""
