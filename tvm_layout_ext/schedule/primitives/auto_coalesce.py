"""``sch.auto_coalesce``: let neighbouring threads touch neighbouring memory, in wide accesses."""

from __future__ import annotations

from typing import Any

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

    Called ``coalesce`` in Triton, where it chooses a layout. Of the possible mappings the best by a
    model is taken, by TVM's traced primitives. Where none does what is needed the block is only
    marked, and pass ``AutoCoalesce`` maps it when the program is lowered; ``docs/auto_coalesce.md``
    tells what is done to which block.

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
    """
    request = Request(num_threads, vector_bytes, stage)
    found = find_block(sch, block, "auto_coalesce")
    return coalesce(sch, found, request)
