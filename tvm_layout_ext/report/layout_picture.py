"""Pictures of layouts, as text, SVG, or an HTML page that tells details where one points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..errors import LayoutError
from ..gpu.hardware import MAX_ACCESS_BYTES
from ..layout import Layout
from ..layout.base import check_power_of_two
from .drawing.boxes import as_svg
from .drawing.grid import Grid
from .drawing.page import as_page
from .layout_grids import MOST_CELLS, bank_grids, hardware_grids, is_shared, tensor_grids

VIEWS: dict[str, Callable[[Layout, Sequence[int], int], list[Grid]]] = {
    "tensor": tensor_grids,
    "hardware": hardware_grids,
    "bank": bank_grids,
}
#: From this size on, neighbours that continue each other are drawn as one box.
MERGE_FROM = 1024


def render(
    layout: Layout,
    shape: Sequence[int],
    kind: str = "text",
    view: str = "tensor",
    element_bits: int | None = None,
) -> str:
    """Draw where a layout puts the elements of a tensor; the method ``render`` of all layouts.

    Parameters
    ----------
    layout : Layout
        What to draw.
    shape : sequence of int
        The tensor's shape.
    kind : str
        ``text``, ``svg`` or ``html``.
    view : str
        ``tensor`` shows the tensor with the holder of each element (thread:register), or with its
        place in shared memory (bank:offset). ``hardware`` shows threads and registers, ``bank``
        shared memory, with the coordinates of what lies there.
    element_bits : int, optional
        Bits of an element, for banks; 32 unless the layout says.

    Examples
    --------
    >>> from tvm_layout_ext.layout import SwizzledSharedLayout
    >>> print(SwizzledSharedLayout(1, 1, 4, [1, 0]).render([4, 4], view="bank", element_bits=128))
    SwizzledShared(vec=1, per_phase=1, max_phase=4, order=[1, 0]) on 4x4
    Banks and offsets of 128-bit elements
         b0   b4   b8  b12  b16  b20  b24  b28
     0  0,0  0,1  0,2  0,3  1,1  1,0  1,3  1,2
     8  2,2  2,3  2,0  2,1  3,3  3,2  3,1  3,0
    """
    if not isinstance(layout, Layout):
        raise LayoutError(f"{layout!r} is no layout to draw.")
    for name, given, known in (("kind", kind, KINDS), ("view", view, VIEWS)):
        if not isinstance(given, str) or given not in known:
            raise LayoutError(f"{name} is {given!r}; it must be one of {', '.join(known)}.")
    bits = getattr(layout, "element_bitwidth", 32) if element_bits is None else element_bits
    check_power_of_two("element_bits", bits, 8, 8 * MAX_ACCESS_BYTES)
    linear = layout.to_linear(shape)
    if max(linear.total_in_size, linear.total_out_size) > MOST_CELLS:
        raise LayoutError(
            f"A picture of {linear.total_in_size} places is too large; {MOST_CELLS} is the most."
        )
    title = f"{layout} on {'x'.join(map(str, shape))}"
    grids = VIEWS[view](layout, shape, bits)
    merge = sum(len(grid.rows) * len(grid.column_names) for grid in grids) >= MERGE_FROM
    word = "warp" if not is_shared(linear) else "bank" if view == "tensor" else "columns"
    return KINDS[kind](title, grids, word, merge)


def _as_text(title: str, grids: Sequence[Grid], _word: str, _merge: bool) -> str:
    return "\n".join([title, *(line for grid in grids for line in _text_lines(grid))])


def _text_lines(grid: Grid) -> list[str]:
    texts = [[cell.label if cell else "." for cell in row] for row in grid.rows]
    width = max(len(text) for row in [*texts, grid.column_names] for text in row)
    margin = max(map(len, grid.row_names)) + 1
    lines = [grid.title, " " * margin + "".join(f"  {n:>{width}}" for n in grid.column_names)]
    for name, row in zip(grid.row_names, texts, strict=True):
        lines.append(f"{name:>{margin}}" + "".join(f"  {text:>{width}}" for text in row))
    return lines


KINDS: dict[str, Callable[[str, Sequence[Grid], str, bool], str]] = {
    "text": _as_text,
    "svg": as_svg,
    "html": as_page,
}
