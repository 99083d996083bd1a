"""``sch.rasterize``: launch blocks in groups, so that neighbours share operands in the L2 cache."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...checks import whole_number
from ...errors import ScheduleError
from ...ir.annotations import RASTERIZE
from ...ir.queries import nodes_in, thread_tag
from ..handles import find_loop, legal

#: Rows of a grid, ``gridDim.y``, that CUDA launches at most.
_MOST_ROWS = 65_535


def rasterize(sch: Any, rows: Any, columns: Any, group: int = 8) -> None:
    """Bind two grid loops so that blocks run in groups of ``group`` rows.

    Blocks are launched row by row. The blocks in flight then read few rows and many columns of
    tiles; in groups they read about as many of both, which L2 holds longer. Called "grouped
    ordering" in Triton's matmul tutorial, ``GROUP_SIZE_M`` there, and block swizzle in CUTLASS::

        # before: 3 x 4 blocks, in order     # after, group=2
         0  1  2  3                           0  2  4  6
         4  5  6  7                           1  3  5  7
         8  9 10 11                           8  9 10 11

    Parameters
    ----------
    rows, columns : LoopRV
        Two serial loops, one around the other, which become ``blockIdx.y`` and ``blockIdx.x``.
    group : int
        Rows of a group, the last of which may have fewer; 1 leaves the order as it is.
    """
    height = whole_number("group of rasterize", group, 1, ScheduleError, _MOST_ROWS)
    nests = [find_loop(sch, loop, "rasterize") for loop in (rows, columns)]
    for nest in nests:
        if nest.thread_binding is not None:
            raise ScheduleError(
                f"Loop {nest.loop_var.name} is already bound to "
                f"{nest.thread_binding.thread_tag}; rasterize binds its loops itself."
            )
    if nests[0].loop_var.same_as(nests[1].loop_var):
        raise ScheduleError(
            f"rasterize needs two loops; rows and columns are both {nests[0].loop_var.name}."
        )
    names = f"{nests[0].loop_var.name} and {nests[1].loop_var.name}"
    if not any(_inside(*pair) for pair in (nests, reversed(nests))):
        raise ScheduleError(
            f"rasterize needs two loops, one around the other, without a loop inside that is bound "
            f"to blockIdx.x or blockIdx.y; {names} are not."
        )
    with legal(f"rasterize of loops {names}"):
        _bind(sch.copy(), rows, columns)
    if height > 1:
        sch.annotate(rows, RASTERIZE, height)
    _bind(sch, rows, columns)


def _bind(sch: Any, rows: Any, columns: Any) -> None:
    sch.bind(rows, "blockIdx.y")
    sch.bind(columns, "blockIdx.x")


def _inside(outer: Any, inner: Any) -> bool:
    """Whether a loop is inside of another one, and no loop there is bound to the grid."""
    found = nodes_in(outer.body, tirx.For)
    is_bound = any(thread_tag(loop) in ("blockIdx.x", "blockIdx.y") for loop in found)
    return not is_bound and any(loop.loop_var.same_as(inner.loop_var) for loop in found)
