"""``sch.cooperative_copy``: all threads of a block copy a tile to shared memory together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx

from ...checks import positive_numbers
from ...errors import ScheduleError
from ...ir.queries import thread_tag
from ..handles import find_block, find_loop, legal
from ..shared_tiles import fetch

#: Tags of the warps of a block, beside the lanes.
_WARPS = ("threadIdx.y", "threadIdx.z")


@dataclass(frozen=True)
class CopyLoops:
    """The loops of a copy: what each thread does in turn, its threads, and the lanes of a vector.

    ``y``, ``z`` and ``x`` are bound to ``threadIdx``; ``steps`` is unrolled, and ``vector``
    vectorised where a thread moves more than one element at a time.
    """

    steps: Any
    y: Any
    z: Any
    x: Any
    vector: Any


def cooperative_copy(
    sch: Any,
    block: Any,
    loop: Any,
    *,
    warps: Sequence[int] | None = None,
    swizzle: str = "auto",
    k_major: bool = True,
) -> CopyLoops:
    """Copy a tile to shared memory inside a loop, by all warps, in vectors, without conflicts.

    ::

        # before                          # after, in the loop
        for i, j in T.grid(M, K):         for steps in T.unroll(...):
            A_shared[i, j] = A[i, j]          for y, z, x in threads of the block:
                                                  for vector in T.vectorized(8):
                                                      A_shared[...] = A[...]

    Parameters
    ----------
    block : SBlockRV or str
        A copy to shared memory, as ``cache_read`` and ``use_tensor_core`` give it.
    loop : LoopRV
        Where the copy is placed; what it copies for an iteration is the tile.
    warps : sequence of two int, optional
        Warps along ``threadIdx.y`` and ``threadIdx.z``; by default those that are bound already.
    swizzle : str
        How the tile lies in shared memory, as of ``sch.swizzle``.
    k_major : bool
        Whether a product reads the tile along its rows, rather than by ``ldmatrix.trans``.

    Raises
    ------
    ScheduleError
        If TensorIR cannot place the copy there, or ``warps`` are not two positive numbers.
    """
    block = find_block(sch, block, "cooperative_copy")
    find_loop(sch, loop, "cooperative_copy")
    shared_out = _warps(sch, warps)
    with legal(f"cooperative_copy of block {sch.get(block).name_hint}"):
        sch.compute_at(block, loop, preserve_unit_loops=True)
    return CopyLoops(*fetch(sch, block, k_major, shared_out, swizzle))


def _warps(sch: Any, warps: Sequence[int] | None) -> Sequence[int]:
    """Those given, or extents of ``threadIdx.y`` and ``.z`` in the function, 1 where none is."""
    if warps is not None:
        return positive_numbers("warps of cooperative_copy", warps, 2, ScheduleError)
    found = dict.fromkeys(_WARPS, 1)

    def visit(node: tirx.For) -> None:
        if (tag := thread_tag(node)) in found:
            found[tag] = max(found[tag], int(node.extent))

    for _, func in sch.mod.functions_items():
        tvm_ffi.structural_walk(func.body, [(tirx.For, visit)])
    return [found[tag] for tag in _WARPS]
