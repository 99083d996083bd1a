"""The matrix product by warpgroups: TMA, mbarriers and ``wgmma``, on ``sm_90a``.

A value of knob ``wgmma`` is a tile of a block; all else follows from it. One or two warpgroups
multiply, another copies as many stages ahead as shared memory holds, and as many blocks as there
are multiprocessors take tile after tile. Of ``2x128x128`` each of two warpgroups has tiles of
128x128, and multiplies while the other stores (``pingpong`` of ``specialize_warps``). Tiles of any
width fit the waves of a size: of 4096 x 11008, 128x256 fill 0.95 of eleven waves, and 128x168 0.99
of sixteen.

Rows of a tile are those of ``wgmma``, 64 or several times 64, and columns any eight. Where rows are
ragged, the transpose is multiplied (``swap`` of ``use_tensor_core``): of ``t152x128``, 152 rows of
the result are columns of the instruction, and 128 columns are its rows. Two rows of such tiles have
304 rows for the 300 of 300 x 8192, where three of 128 have 384.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np
from tvm import DataType, ir, s_tir

from tvm_layout_ext.analysis.contraction import Contraction, read_contraction
from tvm_layout_ext.gpu.halos import Halo
from tvm_layout_ext.gpu.hardware import LINE_BYTES, MULTIPROCESSORS, SECTOR_BYTES, Architecture
from tvm_layout_ext.gpu.measured import H200
from tvm_layout_ext.gpu.warpgroups import (
    MAP_PITCH_BYTES,
    PANEL_BYTES,
    WARPGROUP_ROWS,
    shares_of,
    whole_patterns,
    window_run,
    window_steps,
)
from tvm_layout_ext.intrin.warpgroups import WarpgroupInstruction, has_columns
from tvm_layout_ext.ir.queries import ARITHMETIC, distinct, is_number, nodes_in
from tvm_layout_ext.schedule.composed.gemm import by_warpgroups
from tvm_layout_ext.schedules import _split_k
from tvm_layout_ext.tune.space.knobs import Config, Refusal

__all__ = [
    "NONE", "OF_WINDOWS", "SWAPPED", "TILES", "TILES_OF_WINDOWS", "beside", "check",
    "check_windows", "columns_of", "cycles", "fit", "fit_windows", "is_worth_a_window",
    "may_be_taken", "may_swap", "multiply", "prune", "stages", "work_after",
]  # fmt: skip

NONE = "none"
#: Rows and columns of a tile; of fewer than 64 rows the columns go to the instruction's rows.
_TILES = (
    *((128, columns) for columns in (256, *range(240, 95, -16), 64)),
    *((256, columns) for columns in (176, 160, 144, 128, 96, 64)),
    *((64, columns) for columns in (256, 128, 64)),
    *((rows, columns) for rows in (8, 16, 24, 32, 48) for columns in (128, 64)),
    *((rows, 32) for rows in (64, 128)),
)
#: Those that two warpgroups take in turns, each its own.
_IN_TURNS = (
    *((128, columns) for columns in (176, 160, 144, 128, 112, 96, 64)),
    (192, 112),
    *((64, columns) for columns in (256, 192, 128)),
)
_SIZES = {f"{rows}x{columns}": (rows, columns) for rows, columns in _TILES}
_SIZES |= {f"2x{rows}x{columns}": (rows, columns) for rows, columns in _IN_TURNS}
TILES = tuple(_SIZES)
#: Those of convolutions, whose rows are boxes of 64 pixels.
TILES_OF_WINDOWS = tuple(one for one, (rows, _) in _SIZES.items() if rows >= 64)
#: Rows and columns of tiles that are computed as the transpose. Sums go through shared memory as
#: those of others, turned. Those of 256 columns took 1.02 to 1.3 times as long, beside the plain
#: default, as is modelled (float16, H100).
_SWAPPED = tuple((rows, 128) for rows in range(80, 256, 8) if rows != 128)
_SIZES |= {f"t{rows}x{columns}": (rows, columns) for rows, columns in _SWAPPED}
SWAPPED = tuple(f"t{rows}x{columns}" for rows, columns in _SWAPPED)
#: Bytes of shared memory for stages, beside two chunks of results a warpgroup and the barriers;
#: more than sixteen stages hide nothing more.
_SHARED, _CHUNKS, _MOST_STAGES = 231_000, 2 * 8192, 16
#: Columns of a chunk of 2-byte results, and sums of the largest tile that was measured.
_CHUNK_COLUMNS, _LARGEST = PANEL_BYTES // 2, 256 * 128
#: Blocks of few rows that share a multiprocessor at most, and shared memory that each takes beside
#: its stages: a KB of the system's, and one of barriers.
_MOST_RESIDENT, _RESERVED = 4, 2048
#: Bytes along K that a multiprocessor multiplies in a cycle, of any type, bytes that come to it out
#: of L2 in one, and what a byte costs beside products: tiles of 128x128 did 691 TFLOPS where those
#: of 128x256 did 750 (float16, 4096^3, H200).
_PRODUCTS, _BYTES, _BYTE = 4096, 60, 0.003
#: What 128 bytes of a row cost whose place is a multiple of so many: 4000x4104x4056 took 1.3 times
#: as long as its products and whole lines would (547 TFLOPS, float16, H200).
_TORN = ((LINE_BYTES, 1.0), (SECTOR_BYTES, 1.2), (1, 1.6))
#: Bytes of partial sums that a cycle stores, beside those that the second kernel moves: eight
#: slices of 640x640x10240 took 22 us, four 20.
_WORKSPACE = 1500
#: Cycles for which the blocks of a cluster wait for each other to add up slices of K, and bytes of
#: sums that go to another block in one.
_MET, _EXCHANGED = 3000, 32
#: How much longer a step takes whose tile is copied by two blocks: 4096^3 by 128x256 took 183.7 us
#: for 181.8. Where rows tear lines that is little: 4000x4104x4056 took 201 us for 241, and
#: 2500x2504x2504 52 for 70.
_SHARING = 1.05
#: How much longer a step takes where one warpgroup alone multiplies 64 rows: 128x4096x4096 took
#: 17.7 us by 64x128 in two slices, 15.1 by 128x64 (float16, cold, H200).
_ALONE = 1.4
#: Cycles that TMA takes for a row of zeros beyond the edge: 64x11008x4096 took 40.5 us by 128x96,
#: 27.4 with 128 rows, and 24x8192x8192 by 64x64 48 us where its weights take 32 (H200).
_OUTSIDE = 7
#: How much longer a step takes whose panels of B are wider than the tile: 128x208 did 666 TFLOPS of
#: 4096x11008x4096 with B stored K x N, 763 with B stored N x K.
_PADDED = 1.1
#: Cycles until a kernel's first product, and sums that a cycle stores.
_START, _STORED = 4000, 16
#: Lanes that a multiprocessor starts in a cycle, and how much longer a step takes where two
#: warpgroups take turns, by rows of a tile (``benchmarks/results/h100_pingpong.json``, and
#: ``h200_pingpong.json`` for defaults chosen so).
_LANES = 128
_TURNED = {64: 0.87, 128: 1.03, 192: 1.08}
#: Share of the modelled cycles of other tiles that those in turns may take to be the default.
_WON = 0.975
#: Share of the modelled cycles of the best other tile that one of the transpose may take to be the
#: default: of 49 such pairs of tiles none took longer, and 0.90 of the time in the geometric mean
#: (``benchmarks/results/h200_gemm_swapped.json``).
_SWAP_WON = 0.985
#: Types of which a row of shared memory has the 64 columns of a row of the transpose's tile.
_SWAPPED_TYPES = ("float16", "bfloat16")
#: Sums of the largest tile in turns where something follows, which takes registers, and where not;
#: and of the smallest that was measured.
_LARGEST_IN_TURNS, _LEAST_IN_TURNS = {True: 128 * 128, False: 128 * 176}, 64 * 128
#: Instructions of functions of float32.
_FUNCTIONS = {"tirx.erf": 10, "tirx.exp": 8, "tirx.tanh": 20, "tirx.sigmoid": 16}
#: How much longer than the best tile another may take to be worth trying.
_WORTH = 1.3
#: Slices of K and blocks of a cluster, apart, copying for each other, adding up, and the share of
#: the modelled cycles of plain tiles that they may take, or they are not the default. Clusters of
#: four do not fill the multiprocessors: 128x4096x4096 took 24 us by 32 of them, 14.6 by 64 of two.
_MOVED = {(1, 1): 1.0, (1, 2): 0.98, (2, 2): 0.95} | {
    (slices, 1): 0.99 for slices in _split_k.SLICES[1:]
}
#: Clusters of so many blocks that an H200 runs at once, as its driver tells
#: (``cuOccupancyMaxActiveClusters``): each lies in one GPC, of 14 to 18 multiprocessors.
_CLUSTERS = {1: MULTIPROCESSORS, 2: MULTIPROCESSORS // 2, 3: 39, 4: 30, 8: 15}
#: Slices of K that convolutions have, in clusters alone: three divide the places of most windows.
OF_WINDOWS = (1, 2, 3, 4, 8)
#: How many times the terms of a convolution may be with the zeros that fill channels up to a step.
_MOST_ZEROS = 2
#: Terms of an instruction of 16-bit operands.
_DEPTH = 16
#: Steps that a slice of K has at least.
_LEAST_STEPS = 4
#: Stages that are left for A where B stays in shared memory.
_STAGES_BESIDE = 4


def columns_of(tile: str) -> int:
    """Columns of a tile."""
    return _SIZES[tile][1]


def may_be_taken(tile: str, after: float) -> bool:
    """Whether a tile may be taken without a measurement, for what follows a product."""
    return _is_default(tile, 1, 1, False, after)


def may_swap(product: Contraction, result: Any) -> bool:
    """Whether tiles of :data:`SWAPPED` are for a product of which a function's result is made.

    TMA stores them turned where its columns lie side by side in the result, in 16 bits. They are
    for matrices without a batch, of which rows of A lie along K.
    """
    (columns,) = result.shape[-1:] or [1]
    is_plain = prod(product.extents[i] for i in product.batch) == 1 and not product.a.is_window
    is_stored = DataType(str(result.dtype)).itemsize == 2 and is_number(columns, product.sizes[1])
    return is_plain and product.a.k_major and is_stored


def multiply(sch: s_tir.Schedule, block: Any, config: Config) -> None:
    """Schedule a product, and what is computed from it element by element, for warpgroups."""
    name = str(config["wgmma"])
    in_turns, swap = _is_in_turns(name), is_swapped(name)
    tile = _SIZES[name][::-1] if name in SWAPPED else _SIZES[name]
    rows, columns = _of_instruction(tile)
    what = read_contraction(sch.get(sch.get_sblock(block) if isinstance(block, str) else block))
    one = WarpgroupInstruction(what.operand, what.sums, columns)
    multiples = (rows * (2 if in_turns else 1), columns, one.shape[2])
    slices, cluster, together = _placed(*_moved(config))
    cut = sch.split_k(block, slices, multiple=multiples[2]) if slices > 1 else None
    product = cut.partial if cut else block
    tc = sch.use_tensor_core(product, one.name, multiples=multiples, swap=swap)
    if cut:
        for copy in cut.copies:
            sch.compute_inline(copy)
        _split_k.add_up(sch, cut.sum)
    extents = [ceil(int(sch.get(loop).extent) / n) for loop, n in ((tc.m, rows // 64), (tc.n, 1))]
    resident = _resident(tile, prod(extents) * together)
    alone = resident == together == cluster == 1 and not tc.batch
    sizes = _sizes_of(what, swap) if alone else (0, 0, 0)
    by_warpgroups(
        sch,
        tc,
        (rows, columns),
        stages(tile, tc.b_k_major, resident, 2 if in_turns else 0, sizes),
        int(config["group"]),
        cluster,
        together,
        stay=resident == together == 1,
        mode="pingpong" if in_turns else "cooperative",
    )


def keep_members(
    sch: s_tir.Schedule,
    tc: Any,
    rows: int,
    group: int,
    stages: int,
    batch: Sequence[Any] = (),
    step: Any = None,
    cluster: int = 1,
    stay: bool = True,
) -> None:
    """Schedule a batch of products whose sums another block reads where they are, in registers.

    The loops of ``batch`` go inside of a tile, and copies to ``step``, or each step along K. The
    reader is still to be placed. The other arguments are as of
    :func:`tvm_layout_ext.schedule.composed.gemm.by_warpgroups`.
    """
    step = tc.k if step is None else step
    count = min(2, rows // WARPGROUP_ROWS)
    m, warpgroup, piece = sch.split(tc.m, [None, count, rows // WARPGROUP_ROWS // count])
    sch.reorder(m, tc.n, warpgroup, *batch, tc.k, piece)
    sch.rasterize(m, tc.n, group)
    if stay:
        sch.persistent(m)
    sch.cluster(m, cluster, multicast=True)
    for copy in (tc.a, tc.b):
        sch.compute_at(copy, step)
    sch.pipeline(step, stages, async_copy="tma")
    sch.specialize_warps(warpgroup)
    sch.compute_inline(tc.result)


def _sizes_of(what: Contraction, swap: bool) -> tuple[int, int, int]:
    """Rows and columns of an instruction's sums, and bytes along K in whole steps."""
    channels = what.extents[what.depth[-1]] if what.a.is_window else what.sizes[2]
    m, n, k = _padded(what.sizes, channels, what.operand, what.b.k_major)
    rows, columns = (n, m) if swap else (m, n)
    return rows, columns, k * np.dtype(what.operand).itemsize


def _moved(config: Config) -> tuple[int, int]:
    """Slices of K, and blocks of a cluster."""
    return int(config.get("split_k", 1)), int(config.get("cluster", 1))


def _placed(slices: int, cluster: int) -> tuple[int, int, int]:
    """Slices with a second kernel, blocks that share tiles, and slices that are a cluster."""
    together = slices if cluster == slices else 1
    return slices // together, cluster // together, together


def _resident(tile: tuple[int, int], blocks: int) -> int:
    """Blocks that a multiprocessor holds at a time.

    Products of few rows read weights as fast as memory gives them: all blocks shall read at once.
    Registers of two warpgroups that multiply leave no room for another block.
    """
    if not _has_few_rows(tile) or tile[1] > WARPGROUP_ROWS:
        return 1
    return min(_MOST_RESIDENT, ceil(blocks / MULTIPROCESSORS))


def _has_few_rows(tile: tuple[int, int]) -> bool:
    return tile[0] < WARPGROUP_ROWS


def is_swapped(tile: str) -> bool:
    """Whether the transpose is multiplied, so that rows of a tile are not an instruction's."""
    return tile in SWAPPED or _has_few_rows(_SIZES[tile])


def _of_instruction(tile: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of a tile of sums; of few rows the columns are the instruction's rows."""
    rows, columns = tile
    return (columns, rows) if _has_few_rows(tile) else tile


def _is_in_turns(tile: str) -> bool:
    return tile.count("x") > 1


def _consumers(rows: int) -> int:
    return min(2, rows // WARPGROUP_ROWS)


def stages(
    tile: tuple[int, int],
    k_major: bool,
    resident: int = 1,
    consumers: int = 0,
    sizes: tuple[int, int, int] = (0, 0, 0),
) -> int:
    """As many stages as shared memory holds; results of few rows do not go through it.

    Of a tile of :data:`SWAPPED` this is asked with rows and columns of the transpose.

    ``sizes`` are as of :func:`kept_bytes`, where B may stay in shared memory.
    """
    rows, columns = _of_instruction(tile)
    left = _SHARED if _has_few_rows(tile) else _SHARED - _CHUNKS * (consumers or _consumers(rows))
    each = left // resident - (_RESERVED if resident > 1 else 0)
    kept = kept_bytes(sizes, tile, k_major)
    stage = rows + (0 if kept else _wide(columns, k_major))
    return min(_MOST_STAGES, (each - kept) // (stage * PANEL_BYTES))


def kept_bytes(sizes: tuple[int, int, int], tile: tuple[int, int], k_major: bool) -> int:
    """Bytes of B that stay in shared memory for all tiles of a block, or 0.

    ``sizes`` are those of an instruction's rows and columns, and bytes along K. Tiles have all
    columns then, and are more than the multiprocessors: 200704x144x24 took 47.8 us where each tile
    copied B again, 32.6 where it stays (float16, H100, ``benchmarks/results/h100_kept_b.json``).
    """
    rows, columns = _of_instruction(tile)
    many = ceil(sizes[0] / rows) > MULTIPROCESSORS
    steps = ceil(sizes[2] / PANEL_BYTES)
    kept = steps * _wide(columns, k_major) * PANEL_BYTES
    beside = _STAGES_BESIDE * rows * PANEL_BYTES + _CHUNKS * 2
    return kept if many and sizes[1] <= columns and kept + beside <= _SHARED else 0


def _wide(columns: int, k_major: bool) -> int:
    """Columns that are copied: whole panels of 16-bit elements whose neighbours lie along N."""
    panel = PANEL_BYTES // 2
    return columns if k_major else ceil(columns / panel) * panel


def cycles(
    shape: tuple[int, ...],
    tile: str,
    b_transposed: bool,
    slices: int = 1,
    size: int = 2,
    cluster: int = 1,
    after: float = 0,
    copied: float = 1,
) -> float:
    """Modelled cycles of a product by tiles: waves of blocks, each of steps and a store.

    A step takes its products at the tensor cores' rate, and no less than its bytes take out of L2,
    where rows that do not begin with a line cost more. All operands and the result go to memory
    once. More than one slice of K costs a launch, and the workspace. On an H200 it was within 10%
    of what large products took, and within 30% of small ones
    (``benchmarks/results/h200_hopper_gemm.json``). ``size`` is that of an operand's element, and
    ``after`` the instructions for each sum of what follows. Rows of A lie along K, of which a step
    copies a share: ``copied``.

    Examples
    --------
    >>> [round(cycles((4096, 4096, 4096), tile, True)) for tile in ("128x256", "128x128")]
    [312114, 339021]
    """
    m, n, k = shape
    rows, columns = _SIZES[tile]
    outside = -ceil(m / 8) * 8 % rows / ceil(m / rows)
    pitches, k_major = (k, k if b_transposed else n), b_transposed
    if tile in SWAPPED:
        (m, n), (rows, columns), pitches, k_major = (n, m), (columns, rows), pitches[::-1], True
    wide = _wide(columns, k_major)
    slices, cluster, together = _placed(slices, cluster)
    high, broad = (cluster, 1) if columns >= rows else (1, cluster)
    tiles = ceil(m / (rows * high)) * ceil(n / (columns * broad)) * cluster
    turns = ceil(tiles * slices / cluster / _CLUSTERS[max(cluster, together)])
    alone = slices == cluster == together == 1 and rows >= WARPGROUP_ROWS
    kept = alone and kept_bytes((m, n, k * size), (rows, columns), k_major) > 0
    loaded = rows / broad * _row_bytes(pitches[0] * size) * copied
    loaded += wide / high * _row_bytes(pitches[1] * size) / (turns if kept else 1)
    products, copies = rows * columns * PANEL_BYTES / _PRODUCTS, loaded / _BYTES
    step = max(products, copies) + min(1, products / copies) * loaded * _BYTE
    in_turns = _is_in_turns(tile)
    if in_turns and turns > 1:
        step *= _TURNED[rows]
    elif rows == WARPGROUP_ROWS:
        step *= _ALONE
    step *= _PADDED if wide > columns else 1
    step *= _SHARING if cluster > 1 else 1
    step += _OUTSIDE * outside
    steps = ceil(ceil(k * size / PANEL_BYTES) / (slices * together))
    shares = _shares((rows, columns), together)
    stored = rows * columns * (1 / _STORED + after / _LANES) / shares
    if together > 1:
        stored += _MET + rows * columns * 4 * (together - 1) / shares / _EXCHANGED
    computed = turns * (steps * step + stored)
    if in_turns:
        # All but the last tile are stored while the other warpgroup multiplies; what is computed
        # for them keeps it from multiplying.
        beside = rows * columns * after / _LANES
        computed = turns * (steps * step + beside) + rows * columns / _STORED
    moved = ((m + n) * k * size + m * n * 2) / (H200.memory / H200.clock)
    found = (computed**H200.overlap + moved**H200.overlap) ** (1 / H200.overlap)
    workspace = _split_k.workspace_bytes(shape, slices) / _WORKSPACE
    return _START + found + _split_k.second_kernel(shape, slices) + workspace


def work_after(sch: s_tir.Schedule, block: str) -> float:
    """Instructions for each sum of what is computed from a product element by element.

    Examples
    --------
    >>> work_after(sch, "product")  # of a bias and GELU by erf   # doctest: +SKIP
    16
    """
    readers = map(sch.get, sch.get_consumers(sch.get_sblock(block)))
    values = [one.body.value for one in readers if hasattr(one.body, "value")]
    calls = distinct(call for value in values for call in nodes_in(value, ir.Call))
    own = sum(_FUNCTIONS.get(str(call.op.name), 0) for call in calls)
    return own + sum(len(distinct(nodes_in(value, *ARITHMETIC))) for value in values)


def _row_bytes(row: int) -> float:
    """What 128 bytes cost of rows of so many bytes, one behind the other."""
    torn = next(cost for step, cost in _TORN if row % step == 0)
    return PANEL_BYTES * torn


def fit(
    shape: tuple[int, ...],
    dtype: str,
    architecture: Architecture,
    b_transposed: bool,
    a_transposed: bool,
    after: float = 0,
    may_swap: bool = False,
) -> dict[str, Any]:
    """Take the tile of the fewest modelled cycles, or nothing where ``wgmma`` is not legal.

    ``after`` is as of :func:`cycles`, and ``may_swap`` what the function of that name says.

    Few rows are no reason for ``mma.sync``: of 24x8192x8192 it did 29 TFLOPS, ``wgmma`` 67, of
    64x4096x4096 46 and 191 (float16, H200, ``benchmarks/results/h200_hopper_gemm.json``).
    """
    if check(shape, dtype, architecture, b_transposed, a_transposed) is not None:
        return {}
    best, slices, cluster, least = _best(shape, dtype, b_transposed, after)
    if may_swap and (found := _swapped(shape, dtype, b_transposed, least, after)):
        return {"wgmma": found[0], "split_k": 1, "cluster": found[1]}
    return {"wgmma": best, "split_k": slices, "cluster": cluster}


def fit_windows(
    sizes: tuple[int, int, int],
    channels: int,
    dtype: str,
    b_transposed: bool,
    images: int = 1,
    halo: Halo | None = None,
) -> dict[str, Any]:
    """Take the tile of the fewest modelled cycles for a convolution of so many channels.

    Rows are pixels, which come in boxes of 64, and a step has channels of one place in the window.
    ``images`` is as of :func:`fit_images`, and ``halo`` what a tile's pixels have around them, if
    they are copied once. Empty where zeros would make more of the terms than ``mma.sync`` is
    slower. Columns shall end with a tile, where they can: 64x14x14x512, of every second pixel, took
    26 us by 128x128 and 35 by 128x112 (H200, ``benchmarks/results/h200_conv.json``). Slices have as
    many steps each.
    """
    size = np.dtype(dtype).itemsize
    padded = _padded(sizes, channels, dtype, b_transposed)
    slices = [one for one in OF_WINDOWS if _check_slices(padded[2], dtype, one) is None]
    depth = PANEL_BYTES // size
    needs_halo = ceil(channels / depth) * depth > _MOST_ZEROS * channels
    around = None
    if halo is not None and b_transposed:
        around = _Around(halo, sizes, channels, images, size, needs_halo)
    if needs_halo and around is None:
        return {}
    cuts = [] if needs_halo else slices
    return fit_images(padded, dtype, b_transposed, images, cuts, around)


@dataclass(frozen=True)
class _Around:
    """A convolution of so many rows, columns and terms whose pixels are copied once."""

    halo: Halo
    sizes: tuple[int, int, int]
    channels: int
    images: int
    size: int  #: Bytes of an element
    is_needed: bool  #: Whether tiles without are not worth it

    def run(self, tile: str) -> int:
        """Channels of a step for which shared memory has room, or 0: a row's of 128 or 64 bytes."""
        rows, columns = _SIZES[tile]
        places = self.sizes[2] // self.channels
        kept = self.sizes[1] <= columns and self.images * self.sizes[0] > rows * MULTIPROCESSORS
        chunks = _CHUNKS * (2 if _is_in_turns(tile) else _consumers(rows))
        panel = PANEL_BYTES // self.size
        for run in sorted((panel, panel // 2), key=lambda one: ceil(self.channels / one) * one):
            steps, row = ceil(self.channels / run), run * self.size
            a = rows // WARPGROUP_ROWS * whole_patterns(self.halo.rows * row)
            b = whole_patterns(places * columns * row)
            if 2 * a + (min(2, steps) if kept else 2) * b + chunks <= _SHARED:
                return run
        return 0

    def cycles(self, tile: str, rows: int) -> float:
        """Modelled cycles of so many rows."""
        places = self.sizes[2] // self.channels
        terms = places * ceil(self.channels / _DEPTH) * _DEPTH
        copied = self.halo.rows / (WARPGROUP_ROWS * places)
        m = ceil(rows * self.halo.outside)
        return cycles((m, self.sizes[1], terms), tile, True, size=self.size, copied=copied)


def check_windows(
    sizes: tuple[int, int, int], channels: int, dtype: str, slices: int
) -> Refusal | None:
    """Why a convolution of so many channels has no such slices of K, or None."""
    return _check_slices(_padded(sizes, channels, dtype)[2], dtype, slices)


def _check_slices(depth: int, dtype: str, slices: int) -> Refusal | None:
    """Why so many terms, zeros among them, have no such slices."""
    steps = depth * np.dtype(dtype).itemsize // PANEL_BYTES
    if steps % slices or (slices > 1 and steps < slices * _LEAST_STEPS):
        return Refusal(
            "slices",
            f"{steps} steps of a window give no {slices} equal slices of {_LEAST_STEPS} or more.",
        )
    return None


def is_worth_a_window(
    sizes: tuple[int, int, int], channels: int, dtype: str, tile: str, slices: int
) -> bool:
    """Whether slices of K are modelled to take no longer than whole sums by the best tile."""
    if _check_cluster(tile, slices, slices) is not None:
        return False
    padded, size = _padded(sizes, channels, dtype), np.dtype(dtype).itemsize
    whole = str(fit_images(padded, dtype, True)["wgmma"])
    least = cycles(padded, whole, True, 1, size)
    return cycles(padded, tile, True, slices, size, slices) <= least


def _padded(
    sizes: tuple[int, int, int], channels: int, dtype: str, b_transposed: bool = True
) -> tuple[int, int, int]:
    """Sizes with the zeros that fill channels of a place up to whole boxes, and these to steps."""
    m, n, k = sizes
    depth = PANEL_BYTES // np.dtype(dtype).itemsize
    run = window_run(k // channels, channels, depth) if b_transposed else depth
    return m, n, window_steps(k // channels, channels, depth, run) * depth


def fit_images(
    sizes: tuple[int, int, int],
    dtype: str,
    b_transposed: bool,
    images: int = 1,
    slices: Sequence[int] = (),
    around: _Around | None = None,
) -> dict[str, Any]:
    """Take the tile of the fewest modelled cycles for images of so many rows each.

    Images share no tile, but of one alone. K is cut into one of these numbers of ``slices``, which
    a cluster adds up, where that is modelled to save a tenth.

    Examples
    --------
    Two images of 16x16 pixels, 1280 channels of a window of 3x3 to as many: 80 tiles of 128x64, or
    32 of 128x160, which are 96 by slices.

    >>> fit_images((512, 1280, 11520), "float16", True, slices=(2, 3, 4))
    {'wgmma': '128x160', 'split_k': 3, 'cluster': 3}
    """
    m, n, k = sizes
    size = np.dtype(dtype).itemsize
    sizes_of = ((one, *_SIZES[one]) for one in TILES if _has_tile(dtype, one))
    tiles = [
        one
        for one, rows, columns in sizes_of
        if rows >= WARPGROUP_ROWS
        and rows * columns <= _LARGEST
        and not _is_narrow(one, n)
        and (not _is_in_turns(one) or (around is not None and _may_turn(one, around)))
        and (around is None or not around.is_needed or around.run(one))
    ]
    if not tiles:
        return {}
    even = [one for one in tiles if n % _SIZES[one][1] == 0]

    def cost(one: str, cut: int = 1) -> float:
        rows = m if images == 1 else images * ceil(m / _SIZES[one][0]) * _SIZES[one][0]
        if around is not None and cut == 1 and around.run(one):
            return around.cycles(one, rows)
        return cycles((rows, n, k), one, b_transposed, cut, size, cut)

    best = cost(whole := min(even or tiles, key=cost))
    found = {
        (one, cut): cost(one, cut)
        for cut in slices
        for one in even or tiles
        if cut > 1 and _check_cluster(one, cut, cut) is None
    }
    least = min(found, key=found.__getitem__, default=(whole, 1))
    tile, cut = least if found and found[least] <= _split_k.SAVED * best else (whole, 1)
    return {"wgmma": tile, "split_k": cut, "cluster": cut}


def _may_turn(tile: str, around: _Around) -> bool:
    """Whether warpgroups may take turns at tiles of a convolution, whatever follows."""
    return prod(_SIZES[tile]) <= _LARGEST_IN_TURNS[True] and around.run(tile) > 0


@lru_cache(maxsize=64)
def _best(
    shape: tuple[int, ...], dtype: str, b_transposed: bool, after: float = 0
) -> tuple[str, int, int, float]:
    """The tile, slices and cluster of the fewest modelled cycles, and these."""
    size = np.dtype(dtype).itemsize
    # Each tile of few rows reads all columns: two of them at most.
    near = (tile for tile in TILES if _SIZES[tile][0] >= min(WARPGROUP_ROWS, shape[0] / 2))
    tiles = [tile for tile in near if _has_tile(dtype, tile) and not _is_narrow(tile, shape[1])]
    torn = _is_torn(shape, size, b_transposed)
    found = {
        (tile, *moved): cycles(shape, tile, b_transposed, moved[0], size, moved[1], after)
        for moved in _MOVED
        for tile in tiles
        if moved[0] <= _most_slices(shape, size) and _is_default(tile, *moved, torn, after)
    }
    usual = (one for one in found if one[1:] == (1, 1) and not _is_in_turns(one[0]))
    plain = min(found[one] for one in usual)
    share = {one: _WON if _is_in_turns(one[0]) else _MOVED[one[1:]] for one in found}
    least = min((one for one in found if found[one] <= share[one] * plain), key=found.__getitem__)
    return (*least, found[least])


@lru_cache(maxsize=64)
def _swapped(
    shape: tuple[int, ...], dtype: str, b_transposed: bool, least: float, after: float
) -> tuple[str, int] | None:
    """The best tile of the transpose, and blocks that share it, where it is modelled to win.

    None if TMA cannot store it.
    """
    if dtype not in _SWAPPED_TYPES or not _is_pitch(shape[1]):
        return None
    shared = (1, 2) if _is_torn(shape, 2, b_transposed) else (1,)
    found = {
        (tile, cluster): cycles(shape, tile, b_transposed, cluster=cluster, after=after)
        for tile in SWAPPED
        for cluster in shared
        if _check_cluster(tile, 1, cluster) is None
    }
    best = min(found, key=found.__getitem__)
    return best if found[best] <= _SWAP_WON * least else None


def _is_torn(shape: tuple[int, ...], size: int, b_transposed: bool) -> bool:
    """Whether rows of an operand begin within lines of 128 bytes."""
    rows = (shape[2], shape[2] if b_transposed else shape[1])
    return any(_row_bytes(row * size) > PANEL_BYTES for row in rows)


def _is_pitch(columns: int) -> bool:
    """Whether TMA stores rows of so many columns of 16 bits."""
    return columns * 2 % MAP_PITCH_BYTES == 0


def _is_default(tile: str, slices: int, cluster: int, torn: bool, after: float) -> bool:
    """Whether a tile may be taken without a measurement.

    Slices that add up in a cluster store whole chunks, or little. Blocks copy for each other only
    rows that tear lines: where they do not, it gave 1.5% at best, and took 17% of 1024^3.
    """
    rows, columns = _SIZES[tile]
    whole = columns % (2 * _CHUNK_COLUMNS) == 0 or columns == WARPGROUP_ROWS
    if cluster > slices and not torn:
        return False
    if rows * columns > _LARGEST or (slices == cluster > 1 and not whole):
        return False
    if _is_in_turns(tile):
        most = _LARGEST_IN_TURNS[after > 0]
        return slices == cluster == 1 and _LEAST_IN_TURNS <= rows * columns <= most
    return _check_cluster(tile, slices, cluster) is None


def _has_tile(dtype: str, tile: str) -> bool:
    if tile in SWAPPED:
        return dtype in _SWAPPED_TYPES
    return has_columns(dtype, _of_instruction(_SIZES[tile])[1])


def _is_narrow(tile: str, columns: int) -> bool:
    """Whether a tile has fewer columns than TMA stores, without need."""
    return _SIZES[tile][1] < min(columns, _CHUNK_COLUMNS)


def _most_slices(shape: tuple[int, ...], size: int) -> int:
    return max(1, shape[2] * size // PANEL_BYTES // _LEAST_STEPS)


def prune(
    shape: tuple[int, ...], dtype: str, config: Config, b_transposed: bool, may_swap: bool = True
) -> Refusal | None:
    """Why a tile is not worth trying with the other knobs, or None.

    ``may_swap`` is as of :func:`fit`.
    """
    tile, size = config.get("wgmma", NONE), np.dtype(dtype).itemsize
    if any(config.get(name, value) != value for name, value in beside(shape, dtype).items()):
        return Refusal("wgmma once a group", "Tiles of wgmma are tried once for each group.")
    slices, cluster = _moved(config)
    if (slices, cluster) not in _MOVED:
        return Refusal("moved", f"{slices} slices in clusters of {cluster} gain nothing.")
    if slices > _most_slices(shape, size):
        return Refusal(
            "short slices", f"{slices} slices have fewer than {_LEAST_STEPS} steps each."
        )
    best = _best(shape, dtype, b_transposed)[-1]
    if tile in SWAPPED and slices > 1:
        return Refusal("swapped whole", f"Tiles of {tile} are tried without slices of K.")
    if tile in SWAPPED and not (may_swap and _is_pitch(shape[1])):
        return Refusal("swapped by threads", f"TMA does not store results of tiles of {tile}.")
    if tile in SWAPPED and cycles(shape, tile, b_transposed, cluster=cluster) > best:
        return Refusal("swapped", f"Tiles of {tile} are modelled to take longer than others.")
    if cycles(shape, tile, b_transposed, slices, size, cluster) > _WORTH * best:
        return Refusal("waves", f"Tiles of {tile} are modelled to take {_WORTH} times the best.")
    return None


@lru_cache(maxsize=64)
def beside(shape: tuple[int, ...], dtype: str) -> dict[str, Any]:
    """The other knobs' values with which tiles are tried: the nearest to the defaults."""
    m, n = (128 if extent >= 64 else 64 for extent in shape[:2])
    if "float8" in dtype:
        m = 64
    depth = 64 if np.dtype(dtype).itemsize == 1 else 32
    stages = min(4, max(2, ceil(shape[2] / depth)))
    moved = {"swizzle": "auto", "prefetch": 1, "tile_k": depth}
    tile = {"tile_m": m, "tile_n": n, "warps_m": 2, "warps_n": 2, "stages": stages}
    return moved | tile


def check_wgmma(architecture: Architecture) -> Refusal | None:
    """Why a GPU has no warpgroups that multiply, or None."""
    if architecture.name != "sm_90a":
        return Refusal("no wgmma", f"{architecture.name} has no wgmma; sm_90a has.")
    return None


def check_pitch(names: str, pitch: int) -> Refusal | None:
    """Why TMA cannot copy operands whose rows are so many bytes apart, or None."""
    if pitch % MAP_PITCH_BYTES == 0:
        return None
    return Refusal(
        "row pitch",
        f"Rows of {names} are {pitch} bytes apart; TMA needs a multiple of {MAP_PITCH_BYTES}.",
    )


def check(
    shape: tuple[int, ...],
    dtype: str,
    architecture: Architecture,
    b_transposed: bool,
    a_transposed: bool,
    config: Config | None = None,
) -> Refusal | None:
    """Why a product cannot be computed by warpgroups, or None."""
    tile = TILES[-1] if config is None else str(config["wgmma"])
    if refusal := check_wgmma(architecture):
        return refusal
    if not _has_tile(dtype, tile):
        return Refusal("no wgmma", f"wgmma of {dtype} has no columns for a tile of {tile}.")
    m, n, k = shape
    size = np.dtype(dtype).itemsize
    for name, k_major, row in (
        ("A", not a_transposed, m if a_transposed else k),
        ("B", b_transposed, k if b_transposed else n),
    ):
        if not k_major and size != 2:
            return Refusal(
                "no wgmma", f"Rows of {name} do not lie along K; wgmma reads {dtype} only so."
            )
        if refusal := check_pitch(name, row * size):
            return refusal
    return None if config is None else _check_cluster(tile, *_moved(config))


def _check_cluster(tile: str, slices: int, cluster: int) -> Refusal | None:
    """Why the blocks of a cluster cannot share a tile, or None."""
    rows, columns = _SIZES[tile]
    if _is_in_turns(tile) and slices == cluster > 1:
        return Refusal(
            "in turns",
            f"Warpgroups take tiles of {tile} in turns, and slices in a cluster of {cluster} need "
            "blocks of one tile each.",
        )
    if slices == cluster > 1 and not _has_few_rows((rows, columns)):
        return _check_sums(tile, slices)
    if cluster in (1, slices):
        return None
    if slices > 1 or _has_few_rows((rows, columns)) or max(rows, columns) % (8 * cluster):
        return Refusal(
            "cluster",
            f"A cluster of {cluster} shares no tile of {tile} in {slices} slices of K; clusters of "
            f"1 and {max(slices, 2)} can.",
        )
    return None


def _check_sums(tile: str, slices: int) -> Refusal | None:
    """Why slices do not fit where stages were, or None."""
    rows, columns = _SIZES[tile]
    sums = rows * columns * 4 * (slices - 1) // _shares((rows, columns), slices)
    held = stages((rows, columns), True) * (rows + columns) * PANEL_BYTES
    if sums <= held:
        return None
    return Refusal(
        "slices",
        f"{slices} slices of a tile of {tile} exchange {sums:,} bytes of sums, and its stages have "
        f"{held:,} bytes.",
    )


def _shares(tile: tuple[int, int], slices: int) -> int:
    """How many blocks of those that add slices up finish a part of a tile."""
    rows, columns = _of_instruction(tile)
    pieces = rows // WARPGROUP_ROWS // _consumers(rows)
    chunks = 1 if columns % _CHUNK_COLUMNS else pieces * columns // _CHUNK_COLUMNS
    return shares_of(slices, pieces * columns // 2, chunks)
