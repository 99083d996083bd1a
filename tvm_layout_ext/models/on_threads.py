"""The rule for products that tensor cores would round: each thread multiplies and adds in full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, gcd
from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import IndexMap

from ..analysis.contraction import Contraction, Operand, read_contraction
from ..errors import ScheduleError
from ..gpu.hardware import MULTIPROCESSORS
from ..schedule.merge_iterators import merge_iterators, merge_result, read_groups
from ..schedule.shared_tiles import row_of, spread
from ..schedules._split_k import SLICES, add_up, second_kernel
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .products import ModelProduct, batch_of, scheduled_products
from .rule import Scheduled

#: Elements of a vector, and lanes of a warp along rows and along columns.
_VECTOR, _LANES = 4, (4, 8)
#: Terms and rows of a tile that a warp copies at once where neighbours lie along K: whole sectors
#: in memory and, by rows that are padded by a vector, all banks of shared memory.
_TERMS, _ROWS = 8, 4
#: How much longer a slice of K takes: four of 512x784x4096 took 379 us, two times as long as so
#: many terms of a whole product (H200).
_SLICED = 2.0
#: Products that a multiprocessor does in a cycle.
_PRODUCTS = 128


@dataclass(frozen=True)
class ThreadTile:
    """Rows and columns of a block, and the share of all products that its threads reach.

    A share of 0.41 was measured of 128x128 (512x4096x784 in 139 us, H200); the others are assumed.
    """

    rows: int
    columns: int
    share: float
    each: tuple[int, int] = (8, 8)
    depth: int = 16
    stages: int = 3


TILES = (
    ThreadTile(128, 128, 0.41),
    ThreadTile(64, 128, 0.38),
    ThreadTile(64, 64, 0.35),
    ThreadTile(32, 64, 0.25),
)
#: Where rows, columns or terms are symbolic: as many rows as columns.
_OF_ANY_SIZE = TILES[2]


def on_threads(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule products of ``float32``; None if there are none of several rows and columns."""
    del target
    if not any(is_product(block) for _, block in blocks_of(func)):
        return None

    def multiplied(sch: s_tir.Schedule, name: str, product: ModelProduct) -> str:
        what = product.what
        if (what.operand, what.sums) != ("float32", "float32"):
            raise ScheduleError(f"{name} multiplies {what.operand}, which tensor cores do.")
        tile, slices = (_OF_ANY_SIZE, 1) if product.has_any_size else fitting(what)
        multiply(sch, name, tile, slices)
        return f"in float32, tiles of {tile.rows}x{tile.columns}, {slices} slices of K"

    return scheduled_products(func, multiplied)


def fitting(product: Contraction) -> tuple[ThreadTile, int]:
    """The tile and the slices of K of the fewest modelled cycles.

    Raises
    ------
    ScheduleError
        If there are more products than a grid may have.
    """
    batch = batch_of(product)
    steps = ceil(product.sizes[2] / 16)
    ways = [(tile, n) for tile in TILES for n in SLICES if n == 1 or (batch == 1 and 8 * n < steps)]
    return min(ways, key=lambda way: _cycles(product.sizes, batch, *way))


def _cycles(sizes: tuple[int, int, int], batch: int, tile: ThreadTile, slices: int) -> float:
    m, n, k = sizes
    blocks = batch * ceil(m / tile.rows) * ceil(n / tile.columns) * slices
    each = tile.rows * tile.columns * ceil(k / slices) / (_PRODUCTS * tile.share)
    each *= _SLICED if slices > 1 else 1
    return ceil(blocks / MULTIPROCESSORS) * each + second_kernel((m, n, k), slices)


def multiply(sch: s_tir.Schedule, name: str, tile: ThreadTile, slices: int) -> None:
    """Give each thread rows and columns of a tile, whose operands come through shared memory."""
    block = sch.get_sblock(name)
    inlined: list[Any] = []
    if slices > 1:
        cut = sch.split_k(block, slices, multiple=tile.depth)
        block, inlined = cut.partial, list(cut.copies)
    what = read_contraction(sch.get(block))
    if merged := merge_iterators(sch, block, what):
        inlined += merged
        what = read_contraction(sch.get(block))
    sides = (what.a, what.b)
    copies = _copied(sch, block, what, [tile.rows, tile.columns, tile.depth])
    for one in inlined:
        sch.compute_inline(one)
    if slices > 1:
        add_up(sch, cut.sum)
    for copy, side in zip(copies, sides, strict=True):
        _share(sch, copy, side)

    result = _result(sch, block)
    *batch, m, n, k = sch.get_loops(block)
    each = tile.each
    warps = tile.rows // each[0] // _LANES[0], tile.columns // each[1] // _LANES[1]
    mo, wm, m1, m0, mi = sch.split(m, [None, warps[0], 2, 2, each[0]])
    no, wn, n2, n1, n0, ni = sch.split(n, [None, warps[1], 2, 2, 2, each[1]])
    ko, ki = sch.split(k, [None, tile.depth])
    sch.reorder(*batch, mo, no, wm, wn, n2, m1, n1, m0, n0, ko, ki, mi, ni)
    thread = sch.fuse(n2, m1, n1, m0, n0)
    if batch:
        sch.bind(sch.fuse(*batch), "blockIdx.z")
    sch.bind(mo, "blockIdx.y")
    sch.bind(no, "blockIdx.x")
    for loop, tag in ((wm, "y"), (wn, "z"), (thread, "x")):
        sch.bind(loop, f"threadIdx.{tag}")
    for loop in (ki, mi, ni):
        sch.unroll(loop)
    for copy, one, lane in zip(copies, each, _LANES, strict=True):
        _load(sch, block, copy, ki)
        if one > _VECTOR:
            _apart(sch, copy, one, lane)
    for copy, side in zip(copies, sides, strict=True):
        _fetch(sch, copy, ko, side, warps)
    sch.pipeline(ko, tile.stages)
    _store(sch, result, thread)
    sch.decompose_reduction(block, ko)


def _copied(sch: Any, block: Any, what: Contraction, multiples: Sequence[int]) -> list[Any]:
    """Copies of both operands by batch, rows and terms, filled up with zeros."""
    sch.reorder_block_iter_var(block, what.order)
    loops = sch.get_loops(block)
    sch.reorder(*(loops[position] for position in what.order))
    copies = [sch.reindex(block, ("read", side.index)) for side in (what.a, what.b)]
    sch.reindex(block, ("write", 0))
    if not any(size % multiple for size, multiple in zip(what.sizes, multiples, strict=True)):
        return copies
    sch.pad_einsum(block, [*[1] * len(what.batch), *multiples])
    padded = []
    for copy in copies:
        (reader,) = sch.get_consumers(copy)
        if sch.get(reader).same_as(sch.get(block)):
            padded.append(copy)
        else:
            sch.compute_inline(copy)
            padded.append(reader)
    return padded


def _share(sch: Any, copy: Any, side: Operand) -> None:
    """Put a copy into shared memory by terms, so that rows, or columns, are neighbours there."""
    dims = len(sch.get(copy).iter_vars)
    dtype = str(sch.get(copy).iter_vars[0].var.ty.dtype)
    turned = IndexMap.from_func(lambda *i: (*i[:-2], i[-1], i[-2]), ndim=dims, index_dtype=dtype)
    sch.transform_layout(copy, ("write", 0), turned)
    if not side.k_major:
        sch.reorder_block_iter_var(copy, [*range(dims - 2), dims - 1, dims - 2])
        loops = sch.get_loops(copy)
        sch.reorder(loops[-1], loops[-2])
    sch.set_scope(copy, 0, "shared.dyn")


def _apart(sch: Any, copy: Any, each: int, lanes: int) -> None:
    """Let neighbouring lanes have neighbouring vectors, though a thread has several in a row."""
    buffer = sch.get(copy).writes[0].source
    dtype = str(sch.get(copy).iter_vars[0].var.ty.dtype)

    def digits(*i: Any) -> list[Any]:
        last = i[-1]
        near = each * lanes
        return [*i[:-1], last // near, last % each // _VECTOR, last % near // each, last % _VECTOR]

    sch.transform_layout(
        copy, ("write", 0), IndexMap.from_func(digits, ndim=len(buffer.shape), index_dtype=dtype)
    )


def _read_by(sch: Any, block: Any, copy: Any) -> int:
    """Which of the regions that a block reads a copy fills."""
    buffer = sch.get(copy).writes[0].source
    return next(i for i, r in enumerate(sch.get(block).reads) if r.source.same_as(buffer))


def _result(sch: Any, block: Any) -> Any:
    """Keep sums in registers; the block that reads them and stores what is computed from them."""
    out = sch.cache_write(block, 0, "local")
    while len(readers := sch.get_consumers(out)) == 1 and read_groups(
        sch.get(readers[0]), sch.get(out).writes[0].source
    ):
        sch.compute_inline(out)
        out = readers[0]
    sums = next(one.source for one in sch.get(out).reads if one.source.scope() == "local")
    merge_result(sch, out, sums)
    return out


def _store(sch: Any, result: Any, thread: Any) -> None:
    """Let each thread compute what follows from its sums."""
    sch.reverse_compute_at(result, thread, preserve_unit_loops=True)
    i, j = sch.get_loops(result)[-2:]
    node = sch.get(result)
    row = row_of(node, node.writes[0].source, "writes")
    j, lanes = sch.split(j, [None, gcd(_VECTOR, row, int(sch.get(j).extent))])
    sch.unroll(i)
    sch.unroll(j)
    if int(sch.get(lanes).extent) > 1:
        sch.vectorize(lanes)


def _load(sch: Any, block: Any, copy: Any, loop: Any) -> None:
    """Load a thread's part of an operand for a term into registers."""
    registers = sch.cache_read(block, _read_by(sch, block, copy), "local")
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
    if side.k_major:
        dims = len(node.writes[0].source.shape)
        sch.storage_align(copy, 0, -2 if dims == len(node.iter_vars) else -5, 32, _VECTOR)
        io, ii = sch.split(i, [None, _ROWS])
        jo, ji = sch.split(j, [None, _TERMS])
        sch.reorder(jo, io, ii, ji)
        found = spread(sch, sch.fuse(jo, io, ii, ji), warps)
    else:
        vector = gcd(_VECTOR, row, int(sch.get(j).extent))
        right, lanes = sch.split(j, [None, vector])
        found = spread(sch, sch.fuse(i, right), warps)
        if vector > 1:
            sch.vectorize(lanes)
    sch.unroll(found[0])
