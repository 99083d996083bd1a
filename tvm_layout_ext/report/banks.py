"""Which lane meets which bank: tables and pictures of a kernel's shared-memory accesses.

Counted from the index expressions of the final device functions, without running them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..analysis.bank_conflict import Conflict, bank_conflicts
from ..gpu.banks import phases
from ..gpu.hardware import BANK_BYTES, LINE_BYTES, NUM_BANKS
from ..ir.device_program import DeviceProgram
from .drawing.boxes import as_svg
from .drawing.grid import Cell, Grid


def read_conflicts(program: DeviceProgram) -> list[Conflict]:
    """Count the shared accesses of all kernels; sites that do the same are listed once."""
    kernels = program.kernels.values()
    found: dict[tuple[Any, ...], Conflict] = {}
    for conflict in (one for kernel in kernels for one in bank_conflicts(kernel)):
        key = (conflict.buffer, conflict.kind, conflict.vector_bytes, _pattern(conflict))
        found.setdefault(key, conflict)
    return list(found.values())


def _pattern(conflict: Conflict) -> tuple[int, ...]:
    """Addresses but for a shift that changes no bank."""
    origin = min((a for a in conflict.addresses if a >= 0), default=0) // LINE_BYTES * LINE_BYTES
    return tuple(a - origin if a >= 0 else -1 for a in conflict.addresses)


def _phases(conflict: Conflict) -> list[range]:
    """Lanes that the memory serves together."""
    addresses = np.array(conflict.addresses)
    width = conflict.vector_bytes
    return phases(addresses, addresses >= 0, width, joins=conflict.kind == "load")


def bank_tables(conflicts: Sequence[Conflict]) -> str:
    """Set the bank at which each lane's access begins in a table, a line for each phase.

    Examples
    --------
    A warp that reads a column of 32 rows of 8 bytes meets each second bank, twice:

    >>> column = Conflict("S", "load", "", 4, 1, 2, 1, True, tuple(range(0, 256, 8)))
    >>> print(bank_tables([column]))
    load of S: 4 bytes a lane, 2 wavefronts a request (least 1)
      lanes  0-31:  0  2  4  6  8 10 12 14 16 18 20 22 24 26 28 30  0  2  4  6  8 10 12 14 16 18 20 22 24 26 28 30
    """  # noqa: E501 (a line of 32 banks)
    lines: list[str] = []
    for conflict in conflicts:
        lines.append(str(conflict))
        for lanes in _phases(conflict):
            banks = (conflict.banks[lane] for lane in lanes)
            cells = " ".join(" -" if bank < 0 else f"{bank:2}" for bank in banks)
            lines.append(f"  lanes {lanes[0]:2}-{lanes[-1]:2}: {cells}")
    return "\n".join(lines)


def bank_picture(conflicts: Sequence[Conflict]) -> str:
    """Draw the worst request of each access as SVG: a row for each wavefront, a column a bank.

    A row is named by the lanes that it serves, ``+1`` if they need one more.
    A cell names the lane whose word the bank gives in that wavefront; lanes that share a word
    are one cell. What a wavefront over the least gives is red.
    """
    return as_svg("Lanes by bank", [_grid(one) for one in conflicts], "wavefront")


def worst(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """Of each buffer and kind of request the one that takes the most wavefronts over the least."""
    found: dict[tuple[str, str], Conflict] = {}
    for one in conflicts:
        known = found.get((one.buffer, one.kind))
        if known is None or one.degree > known.degree:
            found[one.buffer, one.kind] = one
    return list(found.values())


def _grid(conflict: Conflict) -> Grid:
    rows: list[list[Cell | None]] = []
    names: list[str] = []
    for lanes in _phases(conflict):
        for number, row in enumerate(_wavefronts(conflict, lanes)):
            names.append(f"+{number}" if number else f"{lanes[0]}-{lanes[-1]}")
            rows.append([_cell(row.get(bank), bank, number) for bank in range(NUM_BANKS)])
    heads = [str(bank) for bank in range(NUM_BANKS)]
    return Grid(str(conflict), names or ["-"], heads, rows or [[None] * NUM_BANKS])


def _wavefronts(conflict: Conflict, lanes: range) -> list[dict[int, list[int]]]:
    """For each wavefront of a phase, the lanes that each bank serves."""
    words: dict[int, list[int]] = {}
    for lane in lanes:
        start = conflict.addresses[lane]
        if start >= 0:
            last = (start + conflict.vector_bytes - 1) // BANK_BYTES
            for word in range(start // BANK_BYTES, last + 1):
                words.setdefault(word, []).append(lane)
    rows: list[dict[int, list[int]]] = []
    for word, users in words.items():
        bank = word % NUM_BANKS
        free = next((row for row in rows if bank not in row), None)
        if free is None:
            rows.append(free := {})
        free[bank] = users
    return rows


def _cell(lanes: list[int] | None, bank: int, number: int) -> Cell | None:
    if lanes is None:
        return None
    names = ", ".join(map(str, lanes))
    first = lanes[0]
    return Cell(str(first), min(number, 1), first, first, first, f"bank {bank}: lane {names}")
