"""``sch.gemm``: a product from tile, warps and stages, on tensor cores or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...analysis.contraction import read_contraction
from ...checks import positive_numbers, whole_number
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...intrin import INSTRUCTIONS, choose
from ...intrin.warpgroups import is_warpgroup
from ...ir.annotations import MIN_BLOCKS
from ..block_tiles import Gemm, split_warpgroups, split_warps
from ..handles import find_block, own_arch
from ..primitives.cluster import cluster as set_cluster
from ..primitives.persistent import persistent
from ..primitives.pipeline import pipeline
from ..primitives.rasterize import rasterize
from ..primitives.specialize_warps import specialize_warps
from ..primitives.use_tensor_core import TensorCore, use_tensor_core
from ..shared_tiles import staged, store
from ..thread_tiles import by_threads
from .cooperative_copy import cooperative_copy

#: The instruction without tensor cores.
FMA = "fma"


def gemm(
    sch: Any,
    block: Any,
    tile: Sequence[int] = (128, 128, 32),
    warps: Sequence[int] = (2, 2),
    stages: int = 4,
    *,
    group: int = 8,
    swizzle: str = "auto",
    prefetch: bool = True,
    cluster: int = 1,
    instruction: str = "auto",
) -> Gemm:
    """Multiply by tiles of a block, with all that follows from the product element by element.

    Each block of threads computes a tile of the result, in steps along K. Operands go through
    shared memory, ``stages`` steps ahead, swizzled; results leave in rows. Operands may lie either
    way, have batches and ragged sizes.

    Parameters
    ----------
    block : SBlockRV or str
        The sum of products, as of ``sch.use_tensor_core``.
    tile : sequence of three int
        Rows and columns of a block's tile, and the elements of K of a step.
    warps : sequence of two int
        Warps along the rows and the columns of a tile.
    stages : int
        Tiles in shared memory at once; 1 copies and multiplies in turn.
    group : int
        Rows of blocks that run together, as of ``sch.rasterize``.
    swizzle : str
        How tiles lie in shared memory, as of ``sch.swizzle``.
    prefetch : bool
        Whether fragments are loaded one step before they are used.
    cluster : int
        Blocks of a cluster along the columns; with ``wgmma`` they share the longer side of tiles.
    instruction : str
        As of ``sch.use_tensor_core``. With ``wgmma``, on ``sm_90a``, ``warps``, ``swizzle`` and
        ``prefetch`` say nothing: warpgroups of 64 rows share the tile, and TMA copies. With
        ``fma``, which is ``auto`` of ``float32``, each thread multiplies in full, without tensor
        cores, 4x8 of them a warp; only ``tile``, ``warps`` and ``stages`` count then.

    Examples
    --------
    >>> loops = sch.gemm("C", tile=(128, 128, 32), warps=(2, 2), stages=4)   # doctest: +SKIP
    >>> sch.get_loops(loops.tensor_core.result)                             # doctest: +SKIP
    """
    sizes = positive_numbers("tile of gemm", tile, 3, ScheduleError)
    split = positive_numbers("warps of gemm", warps, 2, ScheduleError)
    for name, value in (("stages", stages), ("group", group), ("cluster", cluster)):
        whole_number(f"{name} of gemm", value, 1, ScheduleError)
    block = find_block(sch, block, "gemm")
    what = read_contraction(sch.get(block))
    is_wide = is_warpgroup(instruction)
    if instruction == FMA or (instruction == "auto" and what.is_in_full):
        return by_threads(sch, block, sizes, split, stages)
    if is_wide:
        tc = use_tensor_core(sch, block, instruction, multiples=sizes)
        return by_warpgroups(sch, tc, (sizes[0], sizes[1]), stages, group, cluster)
    gpu = architecture(own_arch(sch))
    one = choose(instruction, what.operand, what.sums, gpu, tf32=what.tf32)
    _check_tile(sizes, split, one.shape)
    tc = use_tensor_core(sch, block, instruction, multiples=sizes)
    return by_warps(sch, tc, sizes, split, stages, group, swizzle, prefetch, cluster)


def by_warps(
    sch: Any,
    tc: TensorCore,
    tile: Sequence[int],
    warps: Sequence[int],
    stages: int,
    group: int,
    swizzle: str,
    prefetch: bool,
    cluster: int,
) -> Gemm:
    """Share a product out to blocks and warps; arguments are as of ``sch.gemm``."""
    one = split_warps(sch, tc, tile, warps, INSTRUCTIONS[tc.instruction].shape, prefetch)
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    rasterize(sch, one.m, one.n, group)
    if cluster > 1:
        set_cluster(sch, one.n, cluster)
    if stages == 1:
        # Or ptxas stores part of a tile before it loads the rest: a wait for memory more, which
        # made 212 TFLOPS of 270 (H200, 128x128x64, swizzled and padded).
        sch.annotate(one.n, MIN_BLOCKS, 1)
    copies = tuple(
        cooperative_copy(sch, operand, one.k, warps=warps, swizzle=swizzle, k_major=k_major)
        for operand, k_major in ((tc.a, tc.a_k_major), (tc.b, tc.b_k_major))
    )
    pipeline(sch, one.k, stages)
    out = staged(sch, tc.result, one.warp_n)
    sch.reverse_compute_at(out, one.n, preserve_unit_loops=True)
    store(sch, tc.result, out, warps)
    return replace(one, copies=copies)


def by_warpgroups(
    sch: Any,
    tc: TensorCore,
    tile: tuple[int, int],
    stages: int,
    group: int,
    cluster: int = 1,
    slices: int = 1,
    stay: bool = True,
    mode: str = "cooperative",
) -> Gemm:
    """Let one or two warpgroups multiply a tile, and another copy for them.

    Neighbours of a cluster share the longer side of their tiles, or the steps of one tile. Blocks
    that ``stay`` take tile after tile. ``mode`` is as of ``sch.specialize_warps``; with
    ``pingpong`` the tile is a warpgroup's.
    """
    rows, columns = tile
    m, warpgroup, piece = split_warpgroups(sch, tc, rows * (2 if mode == "pingpong" else 1))
    if tc.batch:
        sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    rasterize(sch, m, tc.n, group)
    if stay:
        persistent(sch, m)
    set_cluster(sch, m if columns >= rows else tc.n, cluster, multicast=True)
    set_cluster(sch, tc.k, slices)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    pipeline(sch, tc.k, stages, async_copy="tma")
    specialize_warps(sch, warpgroup, mode)
    sch.reverse_compute_at(tc.result, tc.n)
    return Gemm(m, tc.n, warpgroup, None, tc.k, tc, m_inner=piece)


def _check_tile(tile: Sequence[int], warps: Sequence[int], shape: Sequence[int]) -> None:
    """Raise ScheduleError unless each warp gets whole instructions of a tile."""
    for extent, count, size in zip(tile, [*warps, 1], shape, strict=True):
        if extent % (count * size):
            raise ScheduleError(
                f"gemm cannot share {extent} of tile {'x'.join(map(str, tile))} out to {count} "
                f"warps of instructions of {size}; multiples of {count * size} are legal."
            )
