"""Choosing how a shared buffer lies by counting, for every access, what each way costs.

The ways are plain rows, XOR swizzles, the swizzles of TMA and ``wgmma``, and padded rows. All that
keep the widest vectors whole are counted; of equally cheap ones the simplest is taken, in that
order, so memory is spent on padding only where it wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod

from ..errors import LayoutError
from ..gpu.hardware import LINE_BYTES, MAX_ACCESS_BYTES
from ..ir.pointers import shape_of
from ..layout.linear import is_power_of_two
from ..layout.operands import shared_for_mma_sync
from ..layout.placement import Placement, dense, hardware_swizzle, padded, xor_rows
from .bank_conflict import Conflict, count
from .bank_requests import Requests


@dataclass(frozen=True)
class Choice:
    """A way for a buffer to lie."""

    #: As a mode is written, such as ``none``, ``xor(8, 2, 4)``, ``pad(64, 8)`` or ``128B``.
    name: str
    placement: Placement
    #: Wavefronts of all stores and of all loads of a block, and of both without conflicts.
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
    """Choose the cheapest way for a buffer to lie, by all of its accesses; the first of equals.

    ``auto`` looks at all ways, ``xor`` at XOR swizzles only, ``pad`` at paddings, of which it takes
    one without conflicts of plain loads and stores before one that ``cp.async`` prefers.
    """
    vector = _widest_vector(accesses, element_bits)
    if kind == "xor":
        ways = list(_swizzles(shape, element_bits, vector)) or [_triton_way(shape, element_bits)]
    else:
        ways = _paddings(shape, element_bits, vector)
        if kind == "auto":
            ways = [*_plain(shape, element_bits, vector), *ways]
    if not ways:
        raise LayoutError(
            f"A buffer of shape {list(shape)} has no rows to pad; it needs two dims or more."
        )
    if kind == "pad":
        return _best_padding(ways, accesses)
    best: Choice | None = None
    whole = _least_in_rows(accesses)
    for name, placement in ways:
        found = _cost(Choice(name, placement), accesses, whole)
        if best is None or found.total < best.total:
            best = found
        # Nothing is counted after one that has no conflicts.
        if best.total == best.least:
            break
    assert best is not None
    return best


def _best_padding(ways: Sequence[tuple[str, Placement]], accesses: Sequence[Requests]) -> Choice:
    """The padding with which loads and stores conflict least, and of such the cheapest."""
    direct = [each for each in accesses if each.access.kind != "cp.async"]

    def price(choice: Choice) -> tuple[int, int]:
        met = cost(choice, direct)
        return met.total - met.least, choice.total

    return min((cost(Choice(*way), accesses) for way in ways), key=price)


def cost(choice: Choice, accesses: Sequence[Requests]) -> Choice:
    """Count the wavefronts of all accesses of a buffer that lies in some way."""
    return _cost(choice, accesses, _least_in_rows(accesses))


def _least_in_rows(accesses: Sequence[Requests]) -> list[int]:
    """Wavefronts of each access in plain rows, if nothing conflicted."""
    return [_in_rows(requests).least for requests in accesses]


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


def _in_rows(requests: Requests) -> Conflict:
    return count(requests, dense(shape_of(requests.access.buffer) or []))


def _widest_vector(accesses: Sequence[Requests], element_bits: int) -> int:
    """Elements of the widest instruction that an access takes in plain rows."""
    widths = [each.access.bytes or _in_rows(each).vector_bytes for each in accesses]
    return max([1, *(8 * width // element_bits for width in widths)])


def _triton_params(shape: Sequence[int], element_bits: int) -> tuple[int, int, int]:
    """(vec, per_phase, max_phase) that Triton gives an operand whose rows lie along K."""
    if len(shape) < 2 or not is_power_of_two(shape[-1]):
        raise LayoutError(
            f"A swizzle needs rows of a power of two elements; the shape is {list(shape)}."
        )
    k_width = max(32 // element_bits, 1)
    layout = shared_for_mma_sync(0, [8, shape[-1]], [1, 0], element_bits, k_width)
    return layout.vec, layout.per_phase, layout.max_phase


def _triton_way(shape: Sequence[int], element_bits: int) -> tuple[str, Placement]:
    params = _triton_params(shape, element_bits)
    return f"xor{params}", xor_rows(shape, *params)


def _plain(shape: Sequence[int], element_bits: int, vector: int) -> Iterator[tuple[str, Placement]]:
    yield "none", dense(shape)
    yield from _swizzles(shape, element_bits, vector)
    if 8 * MAX_ACCESS_BYTES // element_bits >= vector:
        for width in (128, 64, 32):
            with suppress(LayoutError):
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

    Vectors wider than an access serve loads of several rows: of ``tf32`` operands along N.
    """
    if len(shape) < 2 or not is_power_of_two(shape[-1]):
        return []
    columns, rows = shape[-1], prod(shape[:-1])
    line = max(1, 8 * LINE_BYTES // element_bits)
    widest = max(vector, 8 * MAX_ACCESS_BYTES // element_bits)
    found = [
        (vec, per_phase, max_phase)
        for max_phase in _powers(2, 32)
        for vec in [*reversed(list(_powers(vector, widest))), *_powers(2 * widest, line // 2)]
        for per_phase in _powers(1, max(1, line // min(columns, line)) * 4)
        if vec * max_phase <= columns and per_phase * max_phase <= rows
    ]
    first = _triton_params(shape, element_bits)
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
