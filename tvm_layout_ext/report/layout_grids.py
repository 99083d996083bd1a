"""What a picture of a layout shows, as grids of labelled cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES, NUM_BANKS, WARP_SIZE
from ..layout import Layout, LinearLayout
from .drawing.grid import Cell, Grid

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
        return _planes(_placed_elements(layout, linear, element_bits), shape, "bank:offset")
    copies = linear.total_in_size > linear.total_out_size
    words = "thread:register" + (", + where there are copies" if copies else "")
    return _planes(_held_elements(linear), shape, words)


def hardware_grids(layout: Layout, shape: Sequence[int], element_bits: int) -> list[Grid]:
    """Show the machine, a row a thread and a column a register; for shared memory, its banks."""
    linear = layout.to_linear(shape)
    if is_shared(linear):
        return bank_grids(layout, shape, element_bits)
    sizes = linear.in_sizes
    registers, threads = range(sizes["register"]), range(sizes["lane"] * sizes["warp"])

    def cell(register: int, thread: int, block: int) -> Cell:
        place = _Holder(register, thread % sizes["lane"], thread // sizes["lane"], block)
        element = [*linear.apply(**place._asdict()).values()]
        detail = f"{place}: {_coordinates(element)}"
        return Cell(_label(element), place.warp, place.lane, place.thread, element[-1], detail)

    return [
        Grid(
            _block_title("Elements in each thread's registers", block, sizes["block"]),
            [f"T{thread}" for thread in threads],
            [f"r{register}" for register in registers],
            [[cell(register, thread, block) for register in registers] for thread in threads],
        )
        for block in range(sizes["block"])
    ]


def bank_grids(layout: Layout, shape: Sequence[int], element_bits: int) -> list[Grid]:
    """Show shared memory, 128 bytes a row, the elements as they lie in its banks."""
    linear = layout.to_linear(shape)
    if not is_shared(linear):
        raise LayoutError(f"{layout} lies in registers, which have no banks; view its hardware.")
    offsets, blocks = np.arange(linear.in_sizes["offset"]), linear.in_sizes["block"]
    places = layout.padded_offset(offsets)
    if blocks * int(places[-1]) >= MOST_CELLS:
        raise LayoutError(
            f"A picture of {blocks * (int(places[-1]) + 1)} places is too large; {MOST_CELLS} is "
            "the most."
        )
    # Colour by columns, 16 bytes of them alike: a swizzle then shows as displaced colours.
    first = linear.apply(offset=1, block=0) if len(offsets) > 1 else {}
    column = next((i for i, step in enumerate(first.values()) if step), 0)
    width = max(1, 8 * LINE_BYTES // element_bits)
    grids = []
    for block in range(blocks):
        elements = np.stack([*linear.apply_arrays(offset=offsets, block=block).values()], axis=1)
        rows: list[list[Cell | None]] = [[None] * width for _ in range(places[-1] // width + 1)]
        for place, element in zip(places.tolist(), elements.tolist(), strict=True):
            bank = _bank(place, element_bits)
            hue = element[column] * element_bits // (8 * MAX_ACCESS_BYTES)
            detail = f"{_coordinates(element)}: offset {place}, bank {bank}"
            cell = Cell(_label(element), hue, 0, bank, element[-1], detail)
            rows[place // width][place % width] = cell
        title = f"Banks and offsets of {element_bits}-bit elements"
        names = [f"b{_bank(i, element_bits)}" for i in range(width)]
        starts = [f"{i * width}" for i in range(len(rows))]
        grids.append(Grid(_block_title(title, block, blocks), starts, names, rows))
    return grids


class _Holder(NamedTuple):
    """A register of a thread."""

    register: int
    lane: int
    warp: int
    block: int

    @staticmethod
    def at(linear: LinearLayout, index: int) -> _Holder:
        """Take the number of an input apart, the register being the fastest."""
        places = []
        for name in _Holder._fields:
            index, place = divmod(index, linear.in_sizes[name])
            places.append(place)
        return _Holder(*places)

    @property
    def thread(self) -> int:
        return WARP_SIZE * self.warp + self.lane

    def __str__(self) -> str:
        where = f"thread {self.thread} (warp {self.warp}, lane {self.lane})"
        return f"{where}, register {self.register}"


def _held_elements(linear: LinearLayout) -> list[Cell]:
    """One cell for each element in row-major order, with the threads that hold it."""
    order = _holders(linear)
    several = linear.in_sizes["block"] > 1
    mark = "+" if order.shape[1] > 1 else ""
    cells = []
    for element, indices in zip(_elements(linear), order.tolist(), strict=True):
        holders = [_Holder.at(linear, index) for index in indices[:NAMED_COPIES]]
        names = [f"block {h.block}, {h}" if several else str(h) for h in holders]
        more = len(indices) - NAMED_COPIES
        detail = f"{_coordinates(element)}: {'; '.join(names)}"
        detail += f"; {more} more" if more > 0 else ""
        first = holders[0]
        prefix = f"B{first.block}:" if several else ""
        label = f"{prefix}{first.thread}:{first.register}{mark}"
        owner = indices[0] // linear.in_sizes["register"]
        cells.append(Cell(label, first.warp, first.lane, owner, first.register, detail))
    return cells


def _placed_elements(layout: Layout, linear: LinearLayout, bits: int) -> list[Cell]:
    """One cell for each element in row-major order, with its bank and offset."""
    several = linear.in_sizes["block"] > 1
    cells = []
    for element, index in zip(_elements(linear), _holders(linear)[:, 0].tolist(), strict=True):
        block, offset = divmod(index, linear.in_sizes["offset"])
        place = int(layout.padded_offset(offset))
        bank = _bank(place, bits)
        prefix, where = (f"B{block}:", f"block {block}, ") if several else ("", "")
        detail = f"{_coordinates(element)}: {where}offset {place}, bank {bank}"
        cells.append(Cell(f"{prefix}{bank}:{place}", bank, 0, bank, place, detail))
    return cells


def _elements(linear: LinearLayout) -> Iterable[tuple[int, ...]]:
    """All elements in row-major order."""
    return product(*(range(n) for n in linear.out_sizes.values()))


def _holders(linear: LinearLayout) -> np.ndarray:
    """For each element in row-major order the numbers of the inputs that hold it."""
    whole = linear.flatten_ins("index").apply_arrays(index=np.arange(linear.total_in_size))
    flat = np.zeros(linear.total_in_size, dtype=np.int64)
    for name, size in linear.out_dims:
        flat = flat * size + whole[name]
    return np.argsort(flat, kind="stable").reshape(linear.total_out_size, -1)


def _planes(cells: Sequence[Cell], shape: Sequence[int], words: str) -> list[Grid]:
    """Cut row-major cells into two-dimensional grids; ``words`` says what the labels are."""
    width = min(FOLD, shape[0]) if len(shape) == 1 else shape[-1]
    rows = [cells[at : at + width] for at in range(0, len(cells), width)]
    if len(shape) == 1:
        starts, steps = range(0, shape[0], width), [f"+{i}" for i in range(width)]
        return [Grid(f"Elements ({words})", [*map(str, starts)], steps, rows)]
    count = shape[-2]
    return [
        Grid(
            f"Elements [{', '.join([*map(str, plane), ':', ':'])}] ({words})",
            [*map(str, range(count))],
            [*map(str, range(width))],
            rows[at * count : (at + 1) * count],
        )
        for at, plane in enumerate(product(*(range(n) for n in shape[:-2])))
    ]


def _bank(place: int, element_bits: int) -> int:
    return place * element_bits // (8 * BANK_BYTES) % NUM_BANKS


def _block_title(title: str, block: int, blocks: int) -> str:
    return f"{title}, block {block}" if blocks > 1 else title


def _label(element: Iterable[int]) -> str:
    return ",".join(map(str, element))


def _coordinates(element: Iterable[int]) -> str:
    return f"({', '.join(map(str, element))})"
