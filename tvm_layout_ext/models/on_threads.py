"""The rule for products that tensor cores would round: each thread multiplies and adds in full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, gcd, prod
from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target
from tvm.tirx import IndexMap

from ..analysis.contraction import Contraction, Operand, read_contraction
from ..errors import ScheduleError
from ..gpu.hardware import MULTIPROCESSORS
from ..schedule.merge_iterators import merge_iterators, merge_result, read_groups
from ..schedule.shared_tiles import row_of
from ..schedules._split_k import SLICES, add_up, second_kernel
from ..tune.space.functions import blocks_of
from ..tune.space.off_tensor_cores import is_product
from .products import ModelProduct, batch_of, scheduled_products
from .rule import Scheduled

#: Threads of a block along rows, and along columns.
_THREADS = 16
#: Terms of a step, elements of a vector, and versions of the tiles.
_DEPTH, _VECTOR, _STAGES = 16, 4, 3
#: Floats between rows of a tile that lie along K, so that a quarter of a warp meets each bank once.
_ROW = 20
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
    steps = ceil(product.sizes[2] / _DEPTH)
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
        cut = sch.split_k(block, slices, multiple=_DEPTH)
        block, inlined = cut.partial, list(cut.copies)
    what = read_contraction(sch.get(block))
    if merged := merge_iterators(sch, block, what):
        inlined += merged
        what = read_contraction(sch.get(block))
    sides = (what.a, what.b)
    copies = _copied(sch, block, what, [tile.rows, tile.columns, _DEPTH])
    for one in inlined:
        sch.compute_inline(one)
    if slices > 1:
        add_up(sch, cut.sum)
    for copy, side in zip(copies, sides, strict=True):
        _share(sch, copy, side)

    parts = [
        _dealt(size, side) for size, side in zip((tile.rows, tile.columns), sides, strict=True)
    ]
    result = _result(sch, block)
    _part(sch, block, copies, sides, parts)
    *batch, mo, ms, ty, mv, no, ns, tx, nv, k = sch.get_loops(block)
    ko, kv, kk = sch.split(k, [None, _DEPTH // _VECTOR, _VECTOR])
    sch.reorder(*batch, mo, no, ty, tx, ko, kv, kk, ms, mv, ns, nv)
    if batch:
        sch.bind(sch.fuse(*batch), "blockIdx.z")
    _bind(sch, (mo, no), "blockIdx")
    _bind(sch, (ty, tx), "threadIdx")
    for loop in (kv, kk, ms, mv, ns, nv):
        sch.unroll(loop)
    _store(sch, result, no, parts)
    for copy in copies:
        _load(sch, block, copy, kv)
        _fetch(sch, copy, ko)
    sch.pipeline(ko, _STAGES)
    sch.decompose_reduction(block, ko)


def _bind(sch: Any, loops: Sequence[Any], kind: str) -> None:
    for loop, axis in zip(loops, "yx", strict=True):
        sch.bind(loop, f"{kind}.{axis}")


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
    """Put a copy into shared memory as its operand lies, neighbours along K or along its rows."""
    if not side.k_major:
        dims = len(sch.get(copy).iter_vars)
        dtype = str(sch.get(copy).iter_vars[0].var.ty.dtype)
        turned = IndexMap.from_func(
            lambda *i: (*i[:-2], i[-1], i[-2]), ndim=dims, index_dtype=dtype
        )
        sch.transform_layout(copy, ("write", 0), turned)
        sch.reorder_block_iter_var(copy, [*range(dims - 2), dims - 1, dims - 2])
        loops = sch.get_loops(copy)
        sch.reorder(loops[-1], loops[-2])
    sch.set_scope(copy, 0, "shared.dyn")
    if side.k_major:
        sch.storage_align(copy, 0, -2, 32, _ROW)


def _dealt(size: int, side: Operand) -> list[int]:
    """How often a thread has a vector of how many rows, or columns; one where others lie apart."""
    vector = 1 if side.k_major else min(_VECTOR, size // _THREADS)
    return [size // _THREADS // vector, _THREADS, vector]


def _digits(index: Any, part: Sequence[int]) -> list[Any]:
    """A row, or a column, by its tile, the turn of a thread, the thread and the vector's lane."""
    _, threads, vector = part
    size = prod(part)
    near = threads * vector
    return [index // size, index % size // near, index % near // vector, index % vector]


def _part(sch: Any, block: Any, copies: Sequence[Any], sides: Any, parts: Any) -> None:
    """Give rows and columns a dim for each of their digits, as the sums of a thread are counted.

    So what a thread has of a tile is a box, of which TVM keeps no more than that.
    """
    rows, columns = parts
    for copy, side, part in zip(copies, sides, parts, strict=True):

        def of_operand(first: Any, last: Any, side: Any = side, part: Any = part) -> list[Any]:
            return [*_digits(first, part), last] if side.k_major else [first, *_digits(last, part)]

        buffer = sch.get(copy).writes[0].source
        digits = _mapped(sch, block, len(buffer.shape), 2, of_operand)
        sch.transform_layout(block, ("read", _read_by(sch, block, copy)), digits)

    def of_result(m: Any, n: Any) -> list[Any]:
        return [*_digits(m, rows), *_digits(n, columns)]

    dims = len(sch.get(block).writes[0].source.shape)
    sch.transform_layout(block, ("write", 0), _mapped(sch, block, dims, 2, of_result))
    dims = len(sch.get(block).iter_vars)
    every = _mapped(sch, block, dims, 3, lambda m, n, k: [*of_result(m, n), k])
    sch.transform_block_layout(block, every)


def _mapped(sch: Any, block: Any, dims: int, own: int, made: Callable[..., list[Any]]) -> IndexMap:
    """Map the last ``own`` indices of ``dims``; batches stay as they are."""
    dtype = str(sch.get(block).iter_vars[0].var.ty.dtype)

    def whole(*i: Any) -> list[Any]:
        return [*i[:-own], *made(*i[-own:])]

    return IndexMap.from_func(whole, ndim=dims, index_dtype=dtype)


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


def _store(sch: Any, result: Any, loop: Any, parts: Sequence[Sequence[int]]) -> None:
    """Let each thread compute what follows from its sums."""
    sch.reverse_compute_at(result, loop, preserve_unit_loops=True)
    i, j = sch.get_loops(result)[-2:]
    (ms, ty, mv), (ns, tx, nv) = (
        sch.split(one, [None, *part[1:]]) for one, part in zip((i, j), parts, strict=True)
    )
    sch.reorder(ty, tx, ms, mv, ns, nv)
    _bind(sch, (ty, tx), "threadIdx")
    for one in (ms, mv, ns, nv):
        sch.unroll(one)


def _load(sch: Any, block: Any, copy: Any, loop: Any) -> None:
    """Load a thread's part of an operand for a few terms into registers."""
    registers = sch.cache_read(block, _read_by(sch, block, copy), "local")
    sch.compute_at(registers, loop, preserve_unit_loops=True)
    *around, row = sch.get_loops(registers)[-5:]
    for one in around:
        sch.unroll(one)
    if int(sch.get(row).extent) > 1:
        sch.vectorize(row)


def _fetch(sch: Any, copy: Any, loop: Any) -> None:
    """Copy a tile to shared memory, all threads together."""
    node = sch.get(copy)
    row = row_of(node, node.reads[0].source, "reads")
    sch.compute_at(copy, loop, preserve_unit_loops=True)
    i, j = sch.get_loops(copy)[-2:]
    vector = gcd(_VECTOR, row, int(sch.get(j).extent))
    right, lanes = sch.split(j, [None, vector])
    rest, ty, tx = sch.split(sch.fuse(i, right), [None, _THREADS, _THREADS])
    _bind(sch, (ty, tx), "threadIdx")
    sch.unroll(rest)
    if vector > 1:
        sch.vectorize(lanes)
