"""``sch.rasterize``: launch blocks in groups, so that neighbours share operands in the L2 cache."""

from __future__ import annotations

from typing import Any

from ..errors import ScheduleError
from ..transform.rasterize_blocks import RASTERIZE
from .checks import whole

__all__ = ["rasterize"]


def rasterize(sch: Any, rows: Any, columns: Any, group: int = 8) -> None:
    """Bind two grid loops so that blocks run in groups of ``group`` rows.

    Blocks are launched row by row. The blocks in flight then read few rows and many columns of
    tiles; in groups they read about as many of both, which L2 holds longer. Called "grouped
    ordering" in Triton's matmul tutorial, ``GROUP_SIZE_M`` there, and block swizzle in CUTLASS::

        # before: 3 x 4 blocks, in order     # after, group=2
         0  1  2  3                           0  2  4  6
         4  5  6  7                           1  3  5  7
         8  9 10 11                           8  9 10 11

    A last group with fewer rows is handled.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``rasterize``.
    rows, columns : LoopRV
        Two serial loops, which become ``blockIdx.y`` and ``blockIdx.x``.
    group : int
        Rows of a group; 1 leaves the order as it is.

    Raises
    ------
    ScheduleError
        If ``group`` is below 1 or no int, or a loop is bound already.
    """
    height = whole(group)
    if height is None or height < 1:
        raise ScheduleError(f"rasterize needs an int group >= 1, not {group!r}.")
    for loop in (rows, columns):
        if sch.get(loop).thread_binding is not None:
            raise ScheduleError(
                f"Loop {sch.get(loop).loop_var.name} is already bound to "
                f"{sch.get(loop).thread_binding.thread_tag}; rasterize binds its loops itself."
            )
    if height > 1:
        sch.annotate(rows, RASTERIZE, height)
    sch.bind(rows, "blockIdx.y")
    sch.bind(columns, "blockIdx.x")
