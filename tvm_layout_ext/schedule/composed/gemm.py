"""``sch.gemm``: a product on tensor cores from tile, warps and stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...analysis.contraction import read_contraction
from ...checks import whole
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...intrin import choose
from ...intrin.warpgroups import is_warpgroup
from ..handles import find_block, own_arch
from ..primitives.use_tensor_core import use_tensor_core
from .by_warpgroups import Gemm, by_warpgroups
from .by_warps import by_warps


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
    """Multiply on tensor cores, with all that follows from the product element by element.

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
        ``prefetch`` say nothing: warpgroups of 64 rows share the tile, and TMA copies.

    Examples
    --------
    >>> loops = sch.gemm("C", tile=(128, 128, 32), warps=(2, 2), stages=4)   # doctest: +SKIP
    >>> sch.get_loops(loops.tensor_core.result)                             # doctest: +SKIP
    """
    sizes, split = _numbers("tile", tile, 3), _numbers("warps", warps, 2)
    for name, value in (("stages", stages), ("group", group), ("cluster", cluster)):
        if (whole(value) or 0) < 1:
            raise ScheduleError(f"gemm needs an int {name} >= 1, not {value!r}.")
    block = find_block(sch, block, "gemm")
    if is_warpgroup(instruction):
        tc = use_tensor_core(sch, block, instruction, multiples=sizes)
        return by_warpgroups(sch, tc, (sizes[0], sizes[1]), stages, group, cluster)
    what = read_contraction(sch.get(block))
    one = choose(instruction, what.operand, what.sums, architecture(own_arch(sch)))
    _check_tile(sizes, split, one.shape)
    tc = use_tensor_core(sch, block, instruction, multiples=sizes)
    return by_warps(sch, tc, sizes, split, stages, group, swizzle, prefetch, cluster)


def _numbers(name: str, given: Sequence[int], count: int) -> list[int]:
    found = [whole(one) for one in given] if isinstance(given, Sequence) else []
    if len(found) != count or any(one is None or one < 1 for one in found):
        raise ScheduleError(f"gemm needs {count} positive numbers as its {name}, not {given!r}.")
    return [int(one) for one in found if one is not None]


def _check_tile(tile: list[int], warps: list[int], shape: Sequence[int]) -> None:
    """Raise ScheduleError unless each warp gets whole instructions of a tile."""
    for extent, count, size in zip(tile, [*warps, 1], shape, strict=True):
        if extent % (count * size):
            raise ScheduleError(
                f"gemm cannot share {extent} of tile {'x'.join(map(str, tile))} out to {count} "
                f"warps of instructions of {size}; multiples of {count * size} are legal."
            )
