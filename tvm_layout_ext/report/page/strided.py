"""The picture of a shared buffer whose rows lie any number of elements apart.

``storage_align`` may pad by 5 elements; the layouts of :mod:`tvm_layout_ext.layout` are those of
Triton, whose paddings are powers of two.
"""

from __future__ import annotations

from ...gpu.hardware import BANK_BYTES, MAX_ACCESS_BYTES, NUM_BANKS
from ..drawing.boxes import as_svg
from ..drawing.grid import Cell, Grid

__all__ = ["strided_grid", "strided_svg"]

#: 16 bytes, the widest access of a thread, have one colour.
_BANKS_OF_A_COLOUR = MAX_ACCESS_BYTES // BANK_BYTES


def strided_grid(rows: int, columns: int, stride: int, bits: int) -> Grid:
    """Each element with its bank and offset.

    Parameters
    ----------
    rows, columns : int
        How many are shown.
    stride : int
        Elements from one row to the next.
    bits : int
        Of an element.

    Examples
    --------
    >>> grid = strided_grid(2, 1, 37, 32)
    >>> [row[0].label for row in grid.rows]
    ['0:0', '5:37']
    """
    cells = [[_cell(i, j, i * stride + j, bits) for j in range(columns)] for i in range(rows)]
    return Grid(
        f"Elements (bank:offset), rows {stride} elements apart",
        [str(i) for i in range(rows)],
        [str(j) for j in range(columns)],
        cells,
    )


def _cell(row: int, column: int, offset: int, bits: int) -> Cell:
    bank = offset * bits // (8 * BANK_BYTES) % NUM_BANKS
    detail = f"({row}, {column}): offset {offset}, bank {bank}"
    return Cell(f"{bank}:{offset}", bank // _BANKS_OF_A_COLOUR, 0, bank, offset, detail)


def strided_svg(title: str, rows: int, columns: int, stride: int, bits: int) -> str:
    """Draw :func:`strided_grid`; elements of one bank that lie side by side are one box."""
    return as_svg(title, [strided_grid(rows, columns, stride, bits)], "columns", merge=True)
