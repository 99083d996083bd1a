"""``sch.specialize_warps``: some warpgroups multiply, and another one copies for them."""

from __future__ import annotations

from typing import Any

from ... import decisions
from ...checks import is_one_of, whole
from ...errors import ScheduleError
from ...gpu.warpgroups import REGISTERS
from ...ir.annotations import PINGPONG, PRODUCERS
from ..block_tiles import is_by_warps, share_out
from ..handles import find_loop, legal

#: Warpgroups share a tile, or each has tiles of its own.
_MODES = ("cooperative", "pingpong")


def specialize_warps(sch: Any, loop: Any, mode: str = "cooperative") -> None:
    """Give copies a warpgroup of their own, and each iteration of a loop one that multiplies.

    Called "warp specialization" in CUTLASS and Triton (``tl.range(..., warp_specialize=True)``).
    The warpgroup that copies runs ahead as far as stages are free; the others wait for the bytes of
    a stage, multiply, and give it back. It has few registers, and the others more than their share.

    ::

        for wg in range(2):                  # warpgroups 0 and 1: wait full; wgmma; arrive empty
            for k in range(64):
                A_shared = A[tile k]         # warpgroup 2: wait empty; TMA, which arrives at full
                C += A_shared * B_shared

    With ``pingpong``, of blocks that are persistent, two warpgroups do not share a tile: each takes
    every second one of its rows. One multiplies while the other computes what follows and stores.

    Where ``use_tensor_core(block, tile=...)`` took ``mma.sync``, no warps copy for others, and none
    take turns: they share copies and results out among themselves, and four multiply 64 rows.

    Parameters
    ----------
    loop : LoopRV
        A serial loop over 64 rows of a product each, made by ``use_tensor_core(block, "wgmma")`` or
        with ``tile``; it becomes ``threadIdx.y``.
    mode : str
        ``"cooperative"`` or ``"pingpong"``.
    """
    if not is_one_of(mode, _MODES):
        raise ScheduleError(f'mode must be "cooperative" or "pingpong", not {mode!r}.')
    nest = find_loop(sch, loop, "specialize_warps")
    if is_by_warps(nest):
        if mode == "pingpong":
            text = "Warps of mma.sync share each tile; only warpgroups of wgmma take turns."
            decisions.note("specialize_warps", nest.loop_var.name, text, refused=True)
        share_out(sch, loop)
        return
    count = whole(nest.extent)
    if count not in REGISTERS:
        raise ScheduleError(
            f"Loop {nest.loop_var.name} has {nest.extent} iterations; {min(REGISTERS)} to "
            f"{max(REGISTERS)} warpgroups can multiply beside one that copies."
        )
    if mode == "pingpong" and count != 2:
        raise ScheduleError(
            f"Loop {nest.loop_var.name} has {nest.extent} iterations; two warpgroups take turns."
        )
    if nest.thread_binding is not None:
        raise ScheduleError(
            f"Loop {nest.loop_var.name} is already bound to {nest.thread_binding.thread_tag}; "
            "specialize_warps binds it itself."
        )
    with legal(f"specialize_warps of loop {nest.loop_var.name}"):
        sch.bind(loop, "threadIdx.y")
    sch.annotate(loop, PRODUCERS, 1)
    if mode == "pingpong":
        sch.annotate(loop, PINGPONG, 1)
