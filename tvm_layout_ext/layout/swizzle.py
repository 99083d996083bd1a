"""The best shared layout between two distributed layouts.

A tensor is written to shared memory in one layout and read in another. We look for the order of
elements in memory with which both sides move wide vectors and neither meets a bank twice, as far
as that is possible at all. Offsets are split into bits of three kinds::

    | segment ...        | bank ...           | vector ... |
      which 128-byte row   which bank of it     inside one access

Put *any* basis vectors of the tensor under these names and the offsets are a bijection. The vectors
that both sides hold in registers go under ``vector``, but for those that are part of a sum in
another input of a side: its lanes would begin inside of a vector, and its accesses be narrower, of
more lanes a phase. Two lanes of a phase conflict when they
differ by a sum of segment vectors, so the segment must meet the span of each side's lanes only
in zero. Vectors that are lanes of neither side are safe. When they run out, a lane vector of the
writer XOR one of the reader lies in neither span: that is the swizzle. Only when those run out,
too, conflicts must remain, and are shared out evenly.

Where neighbouring lanes of the reader hold copies, two phases of wide reads join, and it is their
lanes that must not meet. That is heeded where some vector is a sum; between layouts of single bits
phases are taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import xor

from ..errors import LayoutError
from .banks import BANK_BITS, MAX_ACCESS_BITS, ROW_BITS, check_element, lanes_of_phase_log2
from .f2 import Columns, complement, intersection, meet
from .linear import LinearLayout, check_known, check_linear, is_power_of_two, log2


def optimal_swizzle(src: LinearLayout, dst: LinearLayout, element_bits: int) -> LinearLayout:
    """Find the shared layout that best serves writing as ``src`` and reading as ``dst``.

    Both lead from register, lane, warp and block to the tensor. The result leads there from vector,
    bank, segment, reps and block: the offset is vector, bank and segment put together, the vector
    lowest, and rounds ``reps`` are done one after the other in the same memory.

    Examples
    --------
    A transpose of 32x32 words, a row a warp access on one side, a column on the other. The
    segment's vectors are sums of a row's and a column's lane, the diagonal that everyone knows:

    >>> from tvm_layout_ext.layout import BlockedLayout
    >>> rows = BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]).to_linear([32, 32])
    >>> columns = BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1]).to_linear([32, 32])
    >>> swizzle = optimal_swizzle(rows, columns, 32)
    >>> swizzle.basis("segment")
    ((1, 1), (2, 2), (4, 4), (8, 8), (16, 16))
    >>> swizzle_conflicts(swizzle, rows, columns, 32)
    (0, 0)
    """
    check_element(element_bits)
    check_linear(src, dst)
    if src.out_dims != dst.out_dims or src.flat_basis("block") != dst.flat_basis("block"):
        raise LayoutError(f"{src} and {dst} do not lay out one tensor in the same blocks.")
    a, b = _Side(src), _Side(dst)
    block = [v for v in src.flat_basis("block") if v]
    dimension = log2(src.total_out_size)
    vector = _vector_basis(a, b, element_bits)
    vector_bits = element_bits << len(vector)
    free = dimension - len(vector) - len(block)
    bank_size = min(log2(ROW_BITS // vector_bits), free)
    segment = _segment_basis(
        {*vector, *block, *a.phase(vector_bits)},
        {*vector, *block, *(b.joined if a.sums or b.sums else b.phase)(vector_bits)},
        dimension,
        free - bank_size,
    )
    bank = complement([*vector, *segment, *block], dimension)
    if vector_bits < MAX_ACCESS_BITS:
        bank = _registers_first(bank, a, b)
    segment, bank = _aligned(vector, segment, bank, a, b)
    rounds = _rounds(segment, [*vector, *bank, *block], a, b)
    bases = {
        "vector": vector,
        "bank": bank,
        "segment": [v for v in segment if v not in rounds],
        "reps": rounds,
        "block": block,
    }
    flat = {name: [(v,) for v in vectors] for name, vectors in bases.items()}
    layout = LinearLayout.from_bases(flat, {"element": src.total_out_size})
    return layout.reshape_outs(src.out_sizes)


def swizzle_conflicts(
    swizzle: LinearLayout, src: LinearLayout, dst: LinearLayout, element_bits: int
) -> tuple[int, int]:
    """Count the conflicts of each phase, of the writes as ``src`` and of the reads as ``dst``."""
    check_element(element_bits)
    check_linear(swizzle, src, dst)
    check_known(("vector", "segment"), swizzle.in_dims, "input")
    segment = swizzle.flat_basis("segment") + swizzle.flat_basis("reps")
    access = element_bits * swizzle.in_sizes["vector"]
    vector = swizzle.flat_basis("vector")
    write, read = (
        (1 << intersection(segment, [*vector, *_Side(side).phase(access)])) - 1
        for side in (src, dst)
    )
    return write, read


class _Side:
    """The basis vectors of one layout, each packed into an integer."""

    def __init__(self, layout: LinearLayout) -> None:
        self.registers = [v for v in layout.flat_basis("register") if v]
        self.lanes = layout.flat_basis("lane")
        self.warps = [v for v in layout.flat_basis("warp") if v]
        blocks = [v for v in layout.flat_basis("block") if v]
        self.inputs = [*self.registers, *(v for v in self.lanes if v), *self.warps, *blocks]
        self.columns = Columns(self.inputs)

    def holds(self, register: int, vector: int) -> int:
        """Say whether one of the registers is part of the sum that a vector is."""
        return (self.columns.solve(vector) or 0) >> self.registers.index(register) & 1

    def whole(self, register: int, other: _Side) -> bool:
        """Whether a register of both layouts is part of no other input of either."""
        sums = [v for v in [*self.inputs, *other.inputs] if self.holds(register, v)]
        return sums == [register, register]

    @property
    def sums(self) -> bool:
        return any(not is_power_of_two(v) for v in self.inputs)

    def phase(self, access_bits: int) -> list[int]:
        """Vectors of the lanes that access memory together."""
        return [v for v in self.lanes[: lanes_of_phase_log2(access_bits)] if v]

    def joined(self, access_bits: int) -> list[int]:
        """Vectors of the lanes that read together; two phases where neighbours hold copies."""
        pairs = access_bits > BANK_BITS and 0 in self.lanes[:2]
        return self.phase(access_bits // 2 if pairs else access_bits)


def _vector_basis(src: _Side, dst: _Side, element_bits: int) -> list[int]:
    most = log2(MAX_ACCESS_BITS // element_bits)
    common = _common(src.registers, dst.registers)
    vector = [v for v in common if src.whole(v, dst)][:most]
    missing = log2(max(1, BANK_BITS // element_bits)) - len(vector)
    return vector + _fill_word(src, dst, vector)[: max(0, missing)]


def _fill_word(src: _Side, dst: _Side, vector: Sequence[int]) -> list[int]:
    """List vectors that may complete a 32-bit word, best first.

    Whatever shares a word never conflicts, so registers of both that sums keep from being vectors
    come first, and registers of one side that are warps of the other; then warps; then registers of
    one side that are lanes of the other.
    """

    def left(vectors: Iterable[int]) -> list[int]:
        return [v for v in vectors if v not in vector]

    torn = left(_common(src.registers, dst.registers))
    of_src = _common(left(src.registers), left(dst.warps))
    of_dst = _common(left(dst.registers), left(src.warps))
    if len(of_src) == len(of_dst):
        best = min(of_src, of_dst, key=lambda v: min(v, default=0))
    else:
        best = max(of_src, of_dst, key=len)
    both = _common(left(src.warps), left(dst.warps))
    longest = max(len(src.warps), len(dst.warps))
    turns = [w for i in range(longest) for side in (src, dst) for w in side.warps[i : i + 1]]
    lanes = [v for v in [*src.lanes, *dst.lanes] if v]
    mixed = [v for v in left(lanes) if v in src.registers or v in dst.registers]
    return list(dict.fromkeys([*torn, *best, *both, *left(turns), *mixed, *left(lanes)]))


def _segment_basis(src: set[int], dst: set[int], dimension: int, size: int) -> list[int]:
    """Choose ``size`` vectors that meet the spans of the two sets as little as possible."""
    segment = complement([*src, *dst], dimension)[:size]
    if len(segment) == size:
        return segment
    both = meet(sorted(src), sorted(dst))
    few, many = sorted((_beside(both, sorted(src)), _beside(both, sorted(dst))), key=len)
    clashes = min(max(0, size - len(few) - len(segment)), len(few))
    segment += [x ^ y for x, y in list(zip(few, many, strict=False))[clashes:]]
    return [*segment, *few[:clashes], *many[:clashes]][:size]


def _beside(known: Sequence[int], vectors: Sequence[int]) -> list[int]:
    """List the vectors that neither ``known`` nor those before them span."""
    columns = Columns([*known, *vectors])
    return [v for i, v in enumerate(vectors, len(known)) if not columns.free >> i & 1]


def _rounds(segment: Sequence[int], others: Sequence[int], src: _Side, dst: _Side) -> list[int]:
    """List the segment's vectors that are a register of both sides and part of nothing else there.

    Where lanes lead to other elements of a round, threads would meet in memory in different rounds.
    """
    basis = [*segment, *others]
    columns = Columns(basis)
    parts = 0
    for side in (src, dst):
        for vector in [*side.registers, *side.lanes, *side.warps]:
            parts |= 0 if vector in segment else columns.solve(vector) or 0
    own = [v for bit, v in enumerate(segment) if not parts >> bit & 1]
    lanes = {*src.lanes, *src.warps, *dst.lanes, *dst.warps}
    return [v for v in own if v in src.registers and v in dst.registers and v not in lanes]


def _registers_first(bank: list[int], src: _Side, dst: _Side) -> list[int]:
    """Begin with banks that one side holds in registers: it may then move wider vectors."""
    first = max((_common(bank, side.registers) for side in (src, dst)), key=len)
    return first + [v for v in bank if v not in first]


def _aligned(
    vector: Sequence[int], segment: list[int], bank: list[int], src: _Side, dst: _Side
) -> tuple[list[int], list[int]]:
    """Take from the vectors of rows and banks what they have of a vector's registers.

    Then a side moves registers whole; conflicts stay, as what shares an access never conflicts.
    """
    side = max((src, dst), key=lambda one: len(_common(vector, one.registers)))
    own = _common(vector, side.registers)

    def rest(v: int) -> int:
        return reduce(xor, (r for r in own if side.holds(r, v)), v)

    return [rest(v) for v in segment], [rest(v) for v in bank]


def _common(first: Iterable[int], second: Sequence[int]) -> list[int]:
    return [v for v in first if v in second]
