"""Products by tiles of a block without tensor cores: each thread multiplies and adds in full.

A thread has some rows and columns of a tile. The lanes of a warp are 4 along rows by 8 along
columns, in an order by which neighbours share rows, and neighbours but one columns: phases of a
load of 16 bytes join then, and read four vectors, or two of each of four lanes, of different
banks. Tiles lie by terms in shared memory, so that a vector has four rows, or columns, of a term.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Any

from ..analysis.contraction import Operand, read_contraction
from ..errors import ScheduleError
from ..gpu.hardware import WARP_SIZE
from .block_tiles import Gemm
from .merge_iterators import merge_iterators
from .product_blocks import keep_sums, read_by, stage_operands, turn
from .shared_tiles import row_of, spread

#: Elements of a vector, and lanes of a warp along rows and along columns.
_VECTOR, LANES = 4, (4, 8)
#: Terms that a warp copies at once of 2 or 4 rows where neighbours lie along K: whole sectors. Of a
#: request of 4 bytes a lane each bank of the cache, and of shared memory, whose rows are padded by
#: a vector, has two words.
_TERMS, _LEAST = 16, 8
#: What tiles, warps and lanes are bound to, rows before columns.
_TAGS = ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.z", "threadIdx.x")
_TYPE = "float32"


def by_threads(
    sch: Any, block: Any, tile: Sequence[int], warps: Sequence[int], stages: int
) -> Gemm:
    """Share a product of ``float32`` out to threads; arguments are as of ``sch.gemm``."""
    what = read_contraction(sch.get(block))
    if (what.operand, what.sums) != (_TYPE, _TYPE):
        raise ScheduleError(
            f"gemm multiplies {_TYPE} by fma, not {what.operand} with sums of {what.sums}."
        )
    each = _each(tile, warps)
    if merged := merge_iterators(sch, block, what):
        what = read_contraction(sch.get(block))
    copies = stage_operands(sch, block, what, tile, merged)
    sides = (what.a, what.b)
    for copy, side in zip(copies, sides, strict=True):
        if side.k_major:
            turn(sch, copy)
    result = keep_sums(sch, block, "local")
    *batch, m, n, k = sch.get_loops(block)
    mo, wm, m1, m0, mi = sch.split(m, [None, warps[0], 2, 2, each[0]])
    no, wn, n2, n1, n0, ni = sch.split(n, [None, warps[1], 2, 2, 2, each[1]])
    ko, ki = sch.split(k, [None, tile[2]])
    sch.reorder(*batch, mo, no, wm, wn, n2, m1, n1, m0, n0, ko, ki, mi, ni)
    thread = sch.fuse(n2, m1, n1, m0, n0)
    if batch:
        sch.bind(sch.fuse(*batch), "blockIdx.z")
    for loop, tag in zip((mo, no, wm, wn, thread), _TAGS, strict=True):
        sch.bind(loop, tag)
    for loop in (ki, mi, ni):
        sch.unroll(loop)
    # By the compiler: of 1,400 lines TVM's passes and its front end take twice as long, and the
    # times are the same (0.998, geometric mean of 11 products, 0.90 to 1.10; H100).
    sch.annotate(ko, "pragma_unroll_explicit", 0)
    for copy in copies:
        _load(sch, block, copy, ki)
    for copy, side in zip(copies, sides, strict=True):
        _fetch(sch, copy, ko, side, warps)
    sch.pipeline(ko, stages)
    _store(sch, result, thread)
    sch.decompose_reduction(block, ko)
    return Gemm(mo, no, wm, wn, ko, None, ki, mi, ni)


def _each(tile: Sequence[int], warps: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a thread."""
    least = [count * lanes * _VECTOR for count, lanes in zip(warps, LANES, strict=True)]
    if any(size % one for size, one in zip(tile, (*least, _LEAST), strict=True)):
        raise ScheduleError(
            f"gemm cannot share tile {'x'.join(map(str, tile))} out to {warps[0]}x{warps[1]} warps "
            f"by fma; rows in multiples of {least[0]}, columns of {least[1]} and a depth of "
            f"{_LEAST} are legal."
        )
    return tile[0] // least[0] * _VECTOR, tile[1] // least[1] * _VECTOR


def _load(sch: Any, block: Any, copy: Any, loop: Any) -> None:
    """Load a thread's part of an operand for a term into registers."""
    registers = sch.cache_read(block, read_by(sch, block, copy), "local")
    sch.compute_at(registers, loop, preserve_unit_loops=True)
    right, lanes = sch.split(sch.get_loops(registers)[-1], [None, _VECTOR])
    sch.unroll(right)
    sch.vectorize(lanes)


def _fetch(sch: Any, copy: Any, loop: Any, side: Operand, warps: Sequence[int]) -> None:
    """Copy a tile to shared memory, all threads together."""
    node = sch.get(copy)
    row = row_of(node, node.reads[0].source, "reads")
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    i, j = sch.get_loops(copy)[-2:]
    vector = 1 if side.k_major else gcd(_VECTOR, row, int(sch.get(j).extent))
    if side.k_major:
        sch.storage_align(copy, 0, -2, 32, _VECTOR)
        terms = gcd(_TERMS, int(sch.get(j).extent))
        io, ii = sch.split(i, [None, WARP_SIZE // terms])
        jo, ji = sch.split(j, [None, terms])
        sch.reorder(jo, io, ii, ji)
        vectors = sch.fuse(jo, io, ii, ji)
    else:
        right, lanes = sch.split(j, [None, vector])
        vectors = sch.fuse(i, right)
    sch.unroll(spread(sch, vectors, warps)[0])
    if vector > 1:
        sch.vectorize(lanes)


def _store(sch: Any, result: Any, thread: Any) -> None:
    """Let each thread compute what follows from its sums."""
    sch.reverse_compute_at(result, thread, preserve_unit_loops=True)
    i, j = sch.get_loops(result)[-2:]
    node = sch.get(result)
    row = row_of(node, node.writes[0].source, "writes")
    vector = gcd(_VECTOR, row, int(sch.get(j).extent))
    right, lanes = sch.split(j, [None, vector])
    sch.unroll(i)
    sch.unroll(right)
    if vector > 1:
        sch.vectorize(lanes)
