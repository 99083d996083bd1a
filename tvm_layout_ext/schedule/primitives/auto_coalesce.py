"""``sch.auto_coalesce``: let neighbouring threads touch neighbouring memory, in wide accesses."""

from __future__ import annotations

from typing import Any

from ..._compat import quick_type_checks
from ...gpu.hardware import MAX_ACCESS_BYTES
from ...transform.auto_coalesce import Outcome, Request, coalesce
from ..handles import find_block


def auto_coalesce(
    sch: Any,
    block: Any,
    *,
    num_threads: int | None = None,
    vector_bytes: int = MAX_ACCESS_BYTES,
    stage: str = "auto",
) -> Outcome:
    """Map the loops of a block to threads so that its requests to memory are full and wide.

    Called ``coalesce`` in Triton, where it chooses a layout. Only TVM's traced primitives are used,
    so that the schedule replays from its trace.

    ::

        # before                          # after
        for i in range(64):               for bx in T.thread_binding(2, "blockIdx.x"):
            for j in range(32):               for tx in T.thread_binding(256, "threadIdx.x"):
                B[i, j] = A[i, j]                 for v in T.vectorized(4):
                                                      B[...] = A[...]

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``auto_coalesce``.
    block : SBlockRV or str
        A block whose loops are not bound; or a copy inside a kernel, which is then spread over the
        threads that the kernel has. Its body is stores and atomics, which may be under ``if`` and
        use ``let`` statements; of a reduction, a store a result and ``let`` statements.
    num_threads : int, optional
        Threads of a block, a multiple of 32 up to 1,024; a staged block takes the power of two
        below that its tile can occupy.
    vector_bytes : int
        Bytes of the widest access of a thread: 1, 2, 4, 8 or 16.
    stage : str
        ``auto`` stages loads that want another order than the store through shared memory,
        ``shared`` every load, ``none`` no load.

    Returns
    -------
    Outcome
        What was done, with the sectors of each access before and after.

    Notes
    -----
    Of the possible mappings the one with the fewest sectors is taken, counted at sampled warps.
    Where no traced primitive does what is needed (a block that updates a buffer in place, or reads
    one at several places, or whose staged loops are fused) the block is only marked, and pass
    ``AutoCoalesce`` maps it when the program is lowered; ``text`` then begins so. The page
    ``docs/auto_coalesce.md`` tells what is done to which block.

    Raises
    ------
    ScheduleError
        If an argument is not legal or the block cannot be mapped; the program is unchanged.
    """
    request = Request(num_threads, vector_bytes, stage)
    found = find_block(sch, block, "auto_coalesce")
    with quick_type_checks():
        return coalesce(sch, found, request)
