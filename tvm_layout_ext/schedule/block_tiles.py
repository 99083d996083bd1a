"""Products by tiles of a block, whichever instruction multiplies: ``wgmma``, or ``mma.sync``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..analysis.contraction import Contraction
from ..checks import positive_numbers
from ..errors import ScheduleError
from ..gpu.hardware import Architecture
from ..gpu.warpgroups import MAP_PITCH_BYTES, WARPGROUP_ROWS
from ..intrin.warpgroups import choose_warpgroup
from ..ir.annotations import TENSOR_CORE
from ..ir.evaluate import placeholder_extent
from ..ir.queries import blocks_in
from .shared_tiles import fetch, staged, store

#: Rows of a warp that multiplies by ``mma.sync``, and warps side by side: four share 64 rows.
_ROWS, _ACROSS = 32, 2
#: What the columns of a tile are multiples of: two warps of 16.
_COLUMNS = 32


@dataclass(frozen=True)
class Gemm:
    """What ``sch.gemm`` made, to go on with.

    Attributes
    ----------
    m, n : LoopRV
        Tiles of a result, bound to ``blockIdx.y`` and ``blockIdx.x``.
    warp_m, warp_n : LoopRV
        Warps of a tile, bound to ``threadIdx.y`` and ``threadIdx.z``; with ``wgmma`` ``warp_m`` has
        the warpgroups, and ``warp_n`` is None.
    k : LoopRV
        Steps along K, which are pipelined.
    tensor_core : TensorCore
        The blocks.
    k_inner, m_inner, n_inner : LoopRV or None
        Instructions of a warp in a step, unrolled; with ``wgmma`` only ``m_inner``.
    copies : tuple of CopyLoops
        Of the operands A and B to shared memory; none with ``wgmma``.
    """

    m: Any
    n: Any
    warp_m: Any
    warp_n: Any
    k: Any
    tensor_core: Any
    k_inner: Any = None
    m_inner: Any = None
    n_inner: Any = None
    copies: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        # What it names, as a LoopRV prints its class and address.
        return f"Gemm({', '.join(one.name for one in fields(self) if getattr(self, one.name))})"


def check_tile(tile: Any) -> tuple[int, int, int]:
    """Check the rows, columns and depth of a block's tile."""
    rows, columns, depth = positive_numbers("tile of a block", tile, 3, ScheduleError)
    if rows % WARPGROUP_ROWS or columns % _COLUMNS:
        raise ScheduleError(
            f"The tile of a block is {tile!r}; rows in multiples of {WARPGROUP_ROWS}, columns in "
            f"multiples of {_COLUMNS} and a depth are legal."
        )
    return rows, columns, depth


def why_no_warpgroups(what: Contraction, tile: Any, gpu: Architecture) -> str | None:
    """Why a product cannot go to ``wgmma``, by name where it must, in a sentence, or None."""
    columns = WARPGROUP_ROWS if tile is None else check_tile(tile)[1]
    name = f"wgmma.m64n{columns}k8.f32.tf32" if what.operand == "float32" else "wgmma"
    try:
        one = choose_warpgroup(name, what.operand, what.sums, columns, gpu)
    except ScheduleError as error:
        return str(error)
    if what.b.is_window:
        return (
            f"{what.b.buffer.name} is read by windows along the columns of the product; TMA copies "
            "those of its rows, as of images stored NHWC."
        )
    for side in (what.a, what.b):
        pitch = placeholder_extent(side.buffer.shape[-1]) * np.dtype(what.operand).itemsize
        if not side.k_major and not one.takes_any_major:
            return f"Rows of {side.buffer.name} do not lie along K; {one.name} reads them only so."
        if pitch % MAP_PITCH_BYTES:
            return (
                f"Rows of {side.buffer.name} are {pitch:,} bytes apart; TMA needs a multiple of "
                f"{MAP_PITCH_BYTES}."
            )
    return None


def split_warpgroups(sch: Any, tc: Any, rows: int) -> tuple[Any, Any, Any]:
    """Split rows of ``wgmma`` into tiles of so many, warpgroups, and their pieces of 64."""
    count = min(2, rows // WARPGROUP_ROWS)
    m, group, piece = sch.split(tc.m, [None, count, rows // WARPGROUP_ROWS // count])
    sch.reorder(*tc.batch, m, tc.n, group, tc.k, piece)
    return m, group, piece


def by_warpgroups(sch: Any, tc: Any, tile: Sequence[int]) -> Any:
    """Split the loops of ``wgmma`` into tiles of a block, warpgroups and their 64 rows."""
    m, group, _ = split_warpgroups(sch, tc, tile[0])
    return replace(tc, m=m, warpgroup=group)


def split_warps(
    sch: Any,
    tc: Any,
    tile: Sequence[int],
    warps: Sequence[int],
    shape: Sequence[int],
    prefetch: bool = True,
) -> Gemm:
    """Split the loops of ``mma.sync`` into tiles, their warps and instructions of a shape."""
    m, wm, mi = sch.split(tc.m, [None, warps[0], tile[0] // warps[0] // shape[0]])
    n, wn, ni = sch.split(tc.n, [None, warps[1], tile[1] // warps[1] // shape[1]])
    k, ki = sch.split(tc.k, [None, tile[2] // shape[2]])
    sch.reorder(*tc.batch, m, n, wm, wn, k, ki, mi, ni)
    # Bound first: a tile in shared memory is then that of all warps.
    sch.bind(wm, "threadIdx.y")
    sch.bind(wn, "threadIdx.z")
    for loop in (ki, mi, ni):
        sch.unroll(loop)
    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, ki, preserve_unit_loops=True)
        for loop in sch.get_loops(fragment)[-2:]:
            sch.unroll(loop)
        if prefetch:
            sch.prefetch(fragment)
    return Gemm(m, n, wm, wn, k, tc, ki, mi, ni)


def by_warps(sch: Any, tc: Any, tile: Sequence[int], shape: Sequence[int]) -> Any:
    """Split the loops of ``mma.sync`` so too: warps of 32 rows, two side by side."""
    one = split_warps(sch, tc, tile, (tile[0] // _ROWS, _ACROSS), shape)
    out = staged(sch, tc.result, one.warp_n)
    return replace(tc, m=one.m, n=one.n, k=one.k, warpgroup=one.warp_m, result=out)


def is_by_warps(nest: Any) -> bool:
    """Whether a loop holds a product that :func:`by_warps` split."""
    return any(len(one.annotations.get(TENSOR_CORE, ())) > 1 for one in blocks_in(nest))


def share_out(sch: Any, loop: Any) -> None:
    """Share copies and results around a loop of :func:`by_warps` out to its warps."""
    var = sch.get(loop).loop_var
    inside = sch.get_child_blocks(loop)
    around = list(sch.get_loops(inside[0]))
    at = [sch.get(one).loop_var for one in around].index(var)
    blocks = sch.get_child_blocks(around[at - 1]) if at else inside
    copies = [one for one in inside if _moves(sch.get(one), "global", "shared")]
    outs = [one for one in blocks if _moves(sch.get(one), "shared", "global")]
    if len(copies) != 2 or len(outs) != 1:
        raise ScheduleError(
            f"Around loop {var.name} are {len(copies)} copies of operands and {len(outs)} of "
            "results; place tc.a and tc.b by compute_at and tc.result by reverse_compute_at before "
            "specialize_warps."
        )
    warps = int(sch.get(loop).extent), _ACROSS
    for copy in copies:
        fetch(sch, copy, True, warps, "auto")
    (result,) = sch.get_producers(outs[0])
    store(sch, result, outs[0], warps)


def _moves(block: Any, source: str, target: str) -> bool:
    """Whether a block moves elements from one kind of memory to another."""
    reads = {one.source.scope() or "global" for one in block.reads}
    (write,) = block.writes
    to = write.source.scope() or "global"
    return to.startswith(target) and len(reads) == 1 and reads.pop().startswith(source)
