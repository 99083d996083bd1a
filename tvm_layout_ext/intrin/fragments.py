"""Which lane of a warp holds which element of a tensor-core operand, and where.

One rule serves all types, because the hardware counts 32-bit words. With ``g = lane // 4`` and
``t = lane % 4`` (PTX ISA, "Matrix Fragments for mma.m16n8k16" and its neighbours):

* A: word ``w`` of row ``r`` lies in lane ``(g, t) = (r % 8, w % 4)``, register ``r // 8 + 2 *
  (w // 4)``;
* B, by its columns ``n``: lane ``(n % 8, w % 4)``, register ``w // 4 + 2 * (n // 8)``, the second
  pair of registers being the second instruction's;
* sums: row ``r``, column ``c`` lie in lane ``(r % 8, c % 8 // 2)``, register
  ``c % 2 + 2 * (r // 8) + 4 * (c // 8)``.

A fragment in ``warp`` memory is ``[lane, element]``, the elements of a register neighbours.
All functions take ints or TVM expressions.
"""

from __future__ import annotations

from typing import Any

from ..gpu.hardware import MATRIX_ROW_BYTES

_WORD_BITS = 32
#: 8 x 16-byte matrices along the rows and along K, by operand and count.
REGISTERS = {
    ("a", 1): (1, 1),
    ("a", 2): (2, 1),
    ("a", 4): (2, 2),
    ("b", 1): (1, 1),
    ("b", 2): (1, 2),
    ("b", 4): (2, 2),
}


def turned(row: Any, k: Any, k_major: bool) -> tuple[Any, Any]:
    """Order the indices of a tile as it lies in memory, or those in memory as the tile's."""
    return (row, k) if k_major else (k, row)


def operand_tile(bits: int, registers: tuple[int, int], k_major: bool) -> tuple[int, int]:
    """Extents in memory of a tile of an operand, of so many matrices along the rows and along K."""
    return turned(8 * registers[0], MATRIX_ROW_BYTES * 8 // bits * registers[1], k_major)


def operand_place(
    matrix: str, bits: int, row: Any, k: Any, registers: tuple[int, int] = (2, 2)
) -> tuple[Any, Any]:
    """Lane and element that hold an element of a tile of A or B (``matrix``: ``a`` or ``b``).

    ``row`` is a row of A or a column of B, ``k`` counts along K. ``registers`` lie along the rows
    and along K; 2 and 2 is the whole tile.

    Examples
    --------
    Half precision, row 9, column 3 of A: the second register of lane 5, its upper half.

    >>> operand_place("a", 16, 9, 3)
    (5, 3)
    """
    per_word = _WORD_BITS // bits
    word = k // per_word
    lane = 4 * (row % 8) + word % 4
    if matrix == "a":
        register = registers[0] * (word // 4) + row // 8
    else:
        register = registers[1] * (row // 8) + word // 4
    return lane, register * per_word + k % per_word


def operand_at(
    matrix: str, bits: int, lane: Any, element: Any, registers: tuple[int, int] = (2, 2)
) -> tuple[Any, Any]:
    """Row (A) or column (B) and k of what a lane holds: the inverse of :func:`operand_place`.

    Examples
    --------
    >>> operand_at("a", 16, 5, 3)
    (9, 3)
    """
    per_word = _WORD_BITS // bits
    register = element // per_word
    if matrix == "a":
        high, word = register % registers[0], register // registers[0]
    else:
        high, word = register // registers[1], register % registers[1]
    row = 8 * high + lane // 4
    return row, (4 * word + lane % 4) * per_word + element % per_word


def sums_place(row: Any, column: Any) -> tuple[Any, Any]:
    """Lane and element that hold a sum of a tile of 16 x 16.

    Examples
    --------
    >>> sums_place(9, 3)
    (5, 3)
    """
    lane = 4 * (row % 8) + column % 8 // 2
    return lane, 4 * (column // 8) + 2 * (row // 8) + column % 2


def sums_at(lane: Any, element: Any) -> tuple[Any, Any]:
    """Row and column of a sum that a lane holds: the inverse of :func:`sums_place`.

    Examples
    --------
    >>> sums_at(5, 3)
    (9, 3)
    """
    return 8 * (element % 4 // 2) + lane // 4, 8 * (element // 4) + 2 * (lane % 4) + element % 2
