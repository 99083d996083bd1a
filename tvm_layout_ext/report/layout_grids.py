"""What a picture of a layout shows, as grids of labelled cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import NUM_BANKS, WARP_SIZE
from ..layout import Layout, LinearLayout
from .drawing.grid import Cell, Grid

__all__ = ["bank_grids", "count_cells", "hardware_grids", "is_shared", "tensor_grids"]

#: A vector is folded into rows of this many elements.
FOLD = 32
#: Four times the places of a 256x256 tensor; more would be no picture any more.
MOST_CELLS = 1 << 18
#: Of an element held many times, so many holders are named.
NAMED_COPIES = 4


def is_shared(linear: LinearLayout) -> bool:
    """Whether a layout places elements in shared memory rather than in registers."""
    return "offset" in linear.in_dims


def tensor_grids(layout: Layout, shape: Sequence[int], element_bits: int) -> list[Grid]:
    """Show the tensor, plane by plane, each element with its holder or its place."""
    linear = layout.to_linear(shape)
    if is_shared(linear):
        cells, words = _placed_elements(layout, linear, element_bits), "bank:offset"
    else:
        cells, words = _held_elements(linear), "thread:register"
        if linear.total_in_size > linear.total_out_size:
            words += ", + where there are copies"
    return _planes(cells, shape, words)


def hardware_grids(layout: Layout, shape: Sequence[int], element_bits: int) -> list[Grid]:
    """Show the machine, a row a thread and a column a register; for shared memory, its banks."""
    linear = layout.to_linear(shape)
    if is_shared(linear):
        return bank_grids(layout, shape, element_bits)
    sizes = linear.in_sizes
    registers, lanes, warps = sizes["register"], sizes["lane"], sizes["warp"]
    return [
        Grid(
            _block_title("Elements in each thread's registers", block, sizes["block"]),
            [f"T{thread}" for thread in range(lanes * warps)],
            [f"r{register}" for register in range(registers)],
            [
                [
                    _held(linear, register, thread % lanes, thread // lanes, block)
                    for register in range(registers)
                ]
                for thread in range(lanes * warps)
            ],
        )
        for block in range(sizes["block"])
    ]


def bank_grids(layout: Layout, shape: Sequence[int], element_bits: int) -> list[Grid]:
    """Show shared memory, 128 bytes a row, the elements as they lie in its banks.

    Raises
    ------
    LayoutError
        If the layout is one of registers, or has more than 2^18 places, gaps included.
    """
    linear = layout.to_linear(shape)
    if not is_shared(linear):
        raise LayoutError(f"{layout} lies in registers, which have no banks; view its hardware.")
    blocks = linear.in_sizes["block"]
    return [_memory(layout, linear, block, blocks, element_bits) for block in range(blocks)]


def _memory(
    layout: Layout, linear: LinearLayout, block: int, blocks: int, element_bits: int
) -> Grid:
    offsets = np.arange(linear.in_sizes["offset"])
    places = layout.padded_offset(offsets)
    if blocks * int(places[-1]) >= MOST_CELLS:
        raise LayoutError(
            f"A picture of {blocks * (int(places[-1]) + 1)} places is too large; {MOST_CELLS} is "
            "the most."
        )
    elements = np.stack([*linear.apply_arrays(offset=offsets, block=block).values()], axis=1)
    width = max(1, NUM_BANKS * 32 // element_bits)
    rows: list[list[Cell | None]] = [[None] * width for _ in range(int(places[-1]) // width + 1)]
    # Colour by columns, 16 bytes of them alike: a swizzle then shows as displaced colours.
    column = next((i for i, v in enumerate(linear.apply(offset=1, block=0).values()) if v), 0)
    for place, element in zip(places.tolist(), elements.tolist(), strict=True):
        bank = _bank(place, element_bits)
        detail = f"{_coordinates(element)}: offset {place}, bank {bank}"
        hue = element[column] * element_bits // 128
        cell = Cell(_label(element), hue, 0, bank, element[-1], detail)
        rows[place // width][place % width] = cell
    names = [f"b{_bank(i, element_bits)}" for i in range(width)]
    title = _block_title(f"Banks and offsets of {element_bits}-bit elements", block, blocks)
    return Grid(title, [f"{i * width}" for i in range(len(rows))], names, rows)


def _held_elements(linear: LinearLayout) -> list[Cell]:
    """One cell for each element in row-major order, with the threads that hold it."""
    size = linear.total_in_size
    flat = _row_major(linear)
    order = np.argsort(flat, kind="stable")
    copies = size // linear.total_out_size
    holders = order.reshape(linear.total_out_size, copies)
    names = _Holders(linear, copies)
    elements = product(*(range(n) for n in linear.out_sizes.values()))
    return [
        names.cell(element, row.tolist()) for element, row in zip(elements, holders, strict=True)
    ]


def _row_major(linear: LinearLayout) -> np.ndarray:
    """The row-major number of the element at every input index, register fastest."""
    whole = linear.flatten_ins("index").apply_arrays(index=np.arange(linear.total_in_size))
    flat = np.zeros(linear.total_in_size, dtype=np.int64)
    for name, size in linear.out_dims:
        flat = flat * size + whole[name]
    return flat


class _Holders:
    """Names the holders of elements, given the flat input indices."""

    def __init__(self, linear: LinearLayout, copies: int) -> None:
        self.sizes = linear.in_sizes
        self.copies = copies

    def split(self, index: int) -> tuple[int, int, int, int]:
        register, rest = index % self.sizes["register"], index // self.sizes["register"]
        lane, rest = rest % self.sizes["lane"], rest // self.sizes["lane"]
        return register, lane, rest % self.sizes["warp"], rest // self.sizes["warp"]

    def name(self, index: int) -> str:
        register, lane, warp, block = self.split(index)
        where = f"block {block}, " if self.sizes["block"] > 1 else ""
        thread = WARP_SIZE * warp + lane
        return f"{where}thread {thread} (warp {warp}, lane {lane}), register {register}"

    def cell(self, element: Sequence[int], indices: Sequence[int]) -> Cell:
        register, lane, warp, block = self.split(indices[0])
        thread = WARP_SIZE * warp + lane
        named = "; ".join(map(self.name, indices[:NAMED_COPIES]))
        more = len(indices) - NAMED_COPIES
        detail = f"{_coordinates(element)}: {named}" + (f"; {more} more" if more > 0 else "")
        prefix = f"B{block}:" if self.sizes["block"] > 1 else ""
        mark = "+" if self.copies > 1 else ""
        owner = indices[0] // self.sizes["register"]
        return Cell(f"{prefix}{thread}:{register}{mark}", warp, lane, owner, register, detail)


def _held(linear: LinearLayout, register: int, lane: int, warp: int, block: int) -> Cell:
    image = linear.apply(register=register, lane=lane, warp=warp, block=block)
    element = [*image.values()]
    where = f"thread {WARP_SIZE * warp + lane} (warp {warp}, lane {lane}), register {register}"
    detail = f"{where}: {_coordinates(element)}"
    return Cell(_label(element), warp, lane, WARP_SIZE * warp + lane, element[-1], detail)


def _placed_elements(layout: Layout, linear: LinearLayout, element_bits: int) -> list[Cell]:
    """One cell for each element in row-major order, with its bank and offset."""
    blocks = linear.in_sizes["block"]
    first = np.argsort(_row_major(linear), kind="stable")
    first = first.reshape(linear.total_out_size, -1)[:, 0]
    elements = product(*(range(n) for n in linear.out_sizes.values()))
    cells = []
    for element, index in zip(elements, first.tolist(), strict=True):
        block, offset = divmod(index, linear.in_sizes["offset"])
        place = int(layout.padded_offset(offset))
        bank = _bank(place, element_bits)
        prefix = f"B{block}:" if blocks > 1 else ""
        where = f"block {block}, " if blocks > 1 else ""
        detail = f"{_coordinates(element)}: {where}offset {place}, bank {bank}"
        cells.append(Cell(f"{prefix}{bank}:{place}", bank, 0, bank, place, detail))
    return cells


def _planes(cells: Sequence[Cell], shape: Sequence[int], words: str) -> list[Grid]:
    """Cut row-major cells into two-dimensional grids; ``words`` says what the labels are."""
    if len(shape) == 1:
        width = min(FOLD, shape[0])
        names = [f"{first}" for first in range(0, shape[0], width)]
        columns = [f"+{i}" for i in range(width)]
        return [Grid(f"Elements ({words})", names, columns, _cut(cells, width))]
    rows, columns_count = shape[-2:]
    planes = list(product(*(range(n) for n in shape[:-2])))
    size = rows * columns_count
    return [
        Grid(
            f"Elements [{', '.join([*map(str, plane), ':', ':'])}] ({words})",
            [f"{i}" for i in range(rows)],
            [f"{j}" for j in range(columns_count)],
            _cut(cells[at * size : (at + 1) * size], columns_count),
        )
        for at, plane in enumerate(planes)
    ]


def _cut(cells: Sequence[Cell], width: int) -> list[Sequence[Cell | None]]:
    return [cells[at : at + width] for at in range(0, len(cells), width)]


def _bank(place: int, element_bits: int) -> int:
    return place * element_bits // 32 % NUM_BANKS


def _block_title(title: str, block: int, blocks: int) -> str:
    return f"{title}, block {block}" if blocks > 1 else title


def _label(element: Iterable[int]) -> str:
    return ",".join(map(str, element))


def _coordinates(element: Iterable[int]) -> str:
    return f"({', '.join(map(str, element))})"


def count_cells(grids: Sequence[Grid]) -> int:
    """Count the places of all grids."""
    return sum(prod((len(grid.row_names), len(grid.column_names))) for grid in grids)
