"""``sch.fuse_rows``: reductions and elementwise blocks over the same rows, in one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import decisions
from ...coalesce.rows.chain import NAME, read_chain
from ...coalesce.rows.plan import RowPlan, Wishes, plan_rows
from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES, architecture
from ...ir.annotations import FUSE_ROWS
from ...ir.block_bindings import holder_of
from ..handles import annotate, find_block, own_arch


def fuse_rows(
    sch: Any,
    blocks: Any,
    *,
    lanes: int = 0,
    num_threads: int = 0,
    vector_bytes: int = MAX_ACCESS_BYTES,
    keep: str = "auto",
    cluster: int = 0,
) -> RowPlan:
    """Put a chain of reductions and elementwise blocks over the same rows into one kernel.

    Softmax, layer norm, argmax with its value: each row is read once, kept by the threads that
    share it, and written once. The kernel is written when the program is lowered::

        # before                                 # after, in outline
        for i, k: top[i] = max(top[i], A[i, k])  row = A[i, own part]
        for i, j: e[i, j] = exp(A[i, j] - top[i])  top = max over lanes of max(row)
        for i, k: sum[i] += e[i, k]              row = exp(row - top)
        for i, j: B[i, j] = e[i, j] / sum[i]     B[i, own part] = row / (sum over lanes of row)

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``fuse_rows``.
    blocks : list of SBlockRV or str
        The chain's blocks, in any order, whose loops are not bound; a string names one.
    lanes, num_threads, cluster : int
        Threads of a row in a block, threads of a block, and blocks that share a row (``sm_90`` and
        later), powers of two; 0 leaves them to the model.
    vector_bytes : int
        Bytes of the widest access of a thread: 1, 2, 4, 8 or 16.
    keep : str
        Where a row stays between its uses: ``registers``, ``shared``, ``none`` (it is read again),
        or ``auto``.
    """
    wishes = Wishes(lanes, num_threads, vector_bytes, keep, cluster)
    listed = blocks if isinstance(blocks, Sequence) and not isinstance(blocks, str) else [blocks]
    found = [sch.get(find_block(sch, block, NAME)) for block in listed]
    if not found:
        raise ScheduleError(f"{NAME} needs at least one block, not an empty list.")
    holder = holder_of(sch.mod, found[0])
    assert holder is not None
    chain = read_chain(holder[1], [str(block.name_hint) for block in found])
    plan = plan_rows(chain, wishes, architecture(own_arch(sch)))
    last = find_block(sch, chain.blocks[-1].label, NAME)
    ordered = [block.label for block in chain.blocks]
    annotate(sch, last, FUSE_ROWS, [*plan.numbers(), *ordered])
    decisions.note(NAME, ordered[-1], plan.text(chain))
    return plan
