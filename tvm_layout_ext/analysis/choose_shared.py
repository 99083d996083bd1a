"""Choosing how a shared buffer lies by counting, for every access, what each way costs.

The ways are plain rows, XOR swizzles, the swizzles of TMA and ``wgmma``, and padded rows. All that
keep the widest vectors whole are counted; of equally cheap ones the simplest is taken, in that
order, so memory is spent on padding only where it wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import LayoutError
from ..gpu.hardware import LINE_BYTES, MAX_ACCESS_BYTES
from ..ir.pointers import shape_of
from ..layout.linear import is_power_of_two
from ..layout.operands import shared_for_mma_sync
from ..layout.placement import Placement, dense, hardware_swizzle, padded, xor_rows
from .bank_conflict import count
from .bank_requests import Requests

__all__ = [
    "Choice",
    "choose",
    "choose_xor",
    "cost",
    "derived_xor",
    "hardware_widths",
    "reads_along_k",
    "widest_vector",
]


@dataclass(frozen=True)
class Choice:
    """A way for a buffer to lie.

    Attributes
    ----------
    name : str
        As a mode is written, such as ``none``, ``xor(8, 2, 4)``, ``pad(64, 8)`` or ``128B``.
    placement : Strided or Xor
    writes, reads : int
        Wavefronts of all stores, and of all loads, of a block.
    least : int
        Wavefronts if nothing conflicted.
    """

    name: str
    placement: Placement
    writes: int = 0
    reads: int = 0
    least: int = 0

    @property
    def total(self) -> int:
        """Wavefronts of a block."""
        return self.writes + self.reads

    def __str__(self) -> str:
        return f"{self.name}: {self.writes} wavefronts to write, {self.reads} to read"


def choose(
    shape: Sequence[int], element_bits: int, accesses: Sequence[Requests], kind: str = "auto"
) -> Choice:
    """Choose the cheapest way for a buffer to lie.

    Parameters
    ----------
    shape : sequence of int
        Of the buffer.
    element_bits : int
    accesses : sequence of Requests
        All of its accesses.
    kind : str
        ``auto`` looks at all ways, ``pad`` at paddings only.

    Raises
    ------
    LayoutError
        If no padding keeps the vectors aligned.
    """
    vector = widest_vector(accesses, element_bits)
    ways = _paddings(shape, element_bits, vector)
    if kind == "auto":
        ways = [*_plain(shape, element_bits, vector), *ways]
    if not ways:
        raise LayoutError(
            f"A buffer of shape {list(shape)} has no rows to pad; it needs two dims or more."
        )
    return _cheapest(ways, accesses) if kind == "auto" else _best_padding(ways, accesses)


def choose_xor(shape: Sequence[int], element_bits: int, accesses: Sequence[Requests]) -> Choice:
    """Choose an XOR swizzle: Triton's for the order in which a tile is read, if that is enough.

    Triton copies by vectors as narrow as its swizzle asks. Here the copy is there already: where
    its vectors are wider, or the loads and stores conflict for other reasons, the cheapest XOR
    swizzle that keeps the vectors whole is taken.

    Parameters
    ----------
    shape : sequence of int
        Of the buffer.
    element_bits : int
    accesses : sequence of Requests
        All of its accesses; none at all stand for an operand whose rows lie along K.

    Raises
    ------
    LayoutError
        If rows are no power of two elements, or too short for any swizzle.
    """
    params = derived_xor(shape, element_bits, reads_along_k(accesses))
    vector = widest_vector(accesses, element_bits)
    ways = list(_swizzles(shape, element_bits, vector))
    if not ways or (params[0] >= vector and params[0] * params[2] <= shape[-1]):
        rule = Choice(f"xor{params}", xor_rows(shape, *params))
        direct = [each for each in accesses if each.access.kind != "cp.async"]
        counted = cost(rule, direct)
        if not ways or counted.total == counted.least:
            return cost(rule, accesses)
        ways.insert(0, (rule.name, rule.placement))
    return _cheapest(ways, accesses)


def _cheapest(ways: Sequence[tuple[str, Placement]], accesses: Sequence[Requests]) -> Choice:
    """The first of the cheapest; nothing is counted after one that has no conflicts."""
    best: Choice | None = None
    whole = _least_in_rows(accesses)
    for name, placement in ways:
        found = _cost(Choice(name, placement), accesses, whole)
        if best is None or found.total < best.total:
            best = found
        if best.total == best.least:
            break
    assert best is not None
    return best


def _best_padding(ways: Sequence[tuple[str, Placement]], accesses: Sequence[Requests]) -> Choice:
    """The padding with which loads and stores conflict least, and of such the cheapest.

    ``cp.async`` takes more wavefronts into padded rows than into plain ones, by how much depends on
    the padding; that is not worth conflicts of the loads.
    """
    direct = [each for each in accesses if each.access.kind != "cp.async"]
    found = _costs(ways, accesses)
    alone = found if len(direct) == len(accesses) else _costs(ways, direct)
    prices = [(met.total - met.least, every.total) for met, every in zip(alone, found, strict=True)]
    return found[prices.index(min(prices))]


def _costs(ways: Sequence[tuple[str, Placement]], accesses: Sequence[Requests]) -> list[Choice]:
    whole = _least_in_rows(accesses)
    return [_cost(Choice(*way), accesses, whole) for way in ways]


def cost(choice: Choice, accesses: Sequence[Requests]) -> Choice:
    """Count the wavefronts of all accesses of a buffer that lies in some way.

    Parameters
    ----------
    choice : Choice
    accesses : sequence of Requests
    """
    return _cost(choice, accesses, _least_in_rows(accesses))


def _least_in_rows(accesses: Sequence[Requests]) -> list[int]:
    """Wavefronts of each access in plain rows, if nothing conflicted."""
    return [count(requests, dense_of(requests)).least for requests in accesses]


def _cost(choice: Choice, accesses: Sequence[Requests], whole: Sequence[int]) -> Choice:
    writes, reads, least = 0.0, 0.0, 0.0
    for requests, in_rows in zip(accesses, whole, strict=True):
        conflict = count(requests, choice.placement)
        share = requests.total / max(1, len(requests.active))
        # A torn vector is several instructions, which `least` must not hide.
        least += min(conflict.least, in_rows) * share
        if requests.access.is_write:
            writes += conflict.wavefronts * share
        else:
            reads += conflict.wavefronts * share
    return Choice(choice.name, choice.placement, round(writes), round(reads), round(least))


def dense_of(requests: Requests) -> Placement:
    """Plain rows of the buffer of some requests."""
    return dense(shape_of(requests.access.buffer) or [])


def widest_vector(accesses: Sequence[Requests], element_bits: int) -> int:
    """Find the elements of the widest instruction that an access takes in plain rows.

    Parameters
    ----------
    accesses : sequence of Requests
    element_bits : int
    """
    widest = 1
    for requests in accesses:
        found = requests.access.bytes or count(requests, dense_of(requests)).vector_bytes
        widest = max(widest, 8 * found // element_bits)
    return widest


def derived_xor(
    shape: Sequence[int], element_bits: int, along_k: bool = True
) -> tuple[int, int, int]:
    """Derive (vec, per_phase, max_phase) as Triton does for an operand of a matrix product.

    Where rows lie along K, vectors are 16 bytes (of 8-bit elements and up) and 8 rows differ. Where
    rows lie along M or N, vectors are 8 elements, as many as a fragment has there, and as many rows
    differ as it has along K. As many rows as fit in 128 bytes share a permutation.

    Parameters
    ----------
    shape : sequence of int
        Of the buffer.
    element_bits : int
    along_k : bool
        Rows lie along K; see :func:`reads_along_k`.

    Raises
    ------
    LayoutError
        If rows are no power of two elements.

    Examples
    --------
    >>> derived_xor([128, 32], 16), derived_xor([128, 64], 16), derived_xor([64, 32], 32)
    ((8, 2, 4), (8, 1, 8), (4, 1, 8))
    >>> derived_xor([32, 64], 32, along_k=False), derived_xor([32, 128], 8, along_k=False)
    ((8, 1, 4), (8, 1, 16))
    """
    if len(shape) < 2 or not is_power_of_two(shape[-1]):
        raise LayoutError(
            f"A swizzle needs rows of a power of two elements; the shape is {list(shape)}."
        )
    k_width = max(32 // element_bits, 1)
    operand = 0 if along_k else 1
    layout = shared_for_mma_sync(operand, [8, shape[-1]], [1, 0], element_bits, k_width)
    return layout.vec, layout.per_phase, layout.max_phase


def reads_along_k(accesses: Sequence[Requests]) -> bool:
    """Tell whether the rows of a tile lie along K, by how warps read it.

    A fragment takes 8 rows of 4 lanes where rows lie along K, and 4 rows of 8 lanes where they do
    not, unless ``ldmatrix`` reads it, which takes 8 rows of 16 bytes either way.

    Parameters
    ----------
    accesses : sequence of Requests
        All of the buffer.

    Returns
    -------
    bool
        Also True where no warp reads patches of several rows.
    """
    reads = [requests for requests in accesses if not requests.access.is_write]
    if any(requests.access.kind == "ldmatrix" for requests in reads):
        return True
    return not any(map(_is_across, reads))


def _is_across(requests: Requests) -> bool:
    """Whether more lanes of a request lie side by side than above each other."""
    busy = np.flatnonzero(requests.active.all(axis=1))
    if not len(busy):
        return False
    first = [index[busy[0], :, 0] for index in requests.indices]
    rows = len({tuple(map(int, row)) for row in zip(*first[:-1], strict=True)})
    columns = len(set(map(int, first[-1])))
    return 1 < rows < columns


def hardware_widths(shape: Sequence[int], element_bits: int) -> list[int]:
    """List the byte swizzles that the rows of a shape can have, widest first.

    >>> hardware_widths([64, 32], 16), hardware_widths([4, 64], 16)
    ([64, 32], [])
    """
    fitting: list[int] = []
    for width in (128, 64, 32):
        try:
            hardware_swizzle(shape, width, element_bits)
        except LayoutError:
            continue
        fitting.append(width)
    return fitting


def _plain(shape: Sequence[int], element_bits: int, vector: int) -> Iterator[tuple[str, Placement]]:
    yield "none", dense(shape)
    yield from _swizzles(shape, element_bits, vector)
    if 8 * MAX_ACCESS_BYTES // element_bits >= vector:
        for width in hardware_widths(shape, element_bits):
            yield f"{width}B", hardware_swizzle(shape, width, element_bits)


def _swizzles(
    shape: Sequence[int], element_bits: int, vector: int
) -> Iterator[tuple[str, Placement]]:
    for params in _xor_params(shape, element_bits, vector):
        try:
            placement = xor_rows(shape, *params)
        except LayoutError:
            return
        yield f"xor{params}", placement


def _xor_params(shape: Sequence[int], element_bits: int, vector: int) -> list[tuple[int, int, int]]:
    """Parameters worth trying: Triton's first, then few permutations first, wide vectors last.

    Vectors wider than an access serve loads that take several rows of some neighbours at a time:
    of ``tf32`` operands stored along N, a warp reads 4 rows of 8 elements, 32 bytes each.
    """
    if len(shape) < 2 or not is_power_of_two(shape[-1]):
        return []
    columns, rows = shape[-1], 1
    for extent in shape[:-1]:
        rows *= extent
    line = max(1, 8 * LINE_BYTES // element_bits)
    widest = max(vector, 8 * MAX_ACCESS_BYTES // element_bits)
    found = [
        (vec, per_phase, max_phase)
        for max_phase in _powers(2, 32)
        for vec in [*reversed(list(_powers(vector, widest))), *_powers(2 * widest, line // 2)]
        for per_phase in _powers(1, max(1, line // min(columns, line)) * 4)
        if vec * max_phase <= columns and per_phase * max_phase <= rows
    ]
    first = derived_xor(shape, element_bits)
    return sorted(found, key=lambda params: (params != first, params[0] > widest))


def _powers(low: int, high: int) -> Iterator[int]:
    while low <= high:
        yield low
        low *= 2


def _paddings(shape: Sequence[int], element_bits: int, vector: int) -> list[tuple[str, Placement]]:
    """Rows made longer by up to 128 bytes, in steps that keep the vectors aligned."""
    if len(shape) < 2:
        return []
    line = 8 * LINE_BYTES // element_bits
    short = -shape[-1] % vector
    ways: list[tuple[str, Placement]] = []
    for extra in range(short, line + 1, vector):
        stride = shape[-1] + extra
        ways.append((f"pad({line}, {stride % line})", padded(shape, extra)))
    return ways
