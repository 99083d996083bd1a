"""``sch.double_buffer``: keep several versions of a cache, so that copying overlaps computing."""

from __future__ import annotations

from typing import Any

from ...checks import whole
from ...errors import ScheduleError
from ...ir.annotations import ASYNC_COPY, BY_TMA, NUM_STAGES
from ..handles import find_block

#: Loop variables are of type int32.
_MOST = 2**31 - 1
#: How many fewer versions than stages Triton's pipeliner keeps, by what multiplies.
_TRITON_LESS = {"mma.sync": 1, "wgmma": 0}


def versions_for_triton_stages(
    stages: int, kind: str = "mma.sync", *, level: int = 0, levels: int = 1
) -> int:
    """Number of versions N of :func:`double_buffer` for Triton's ``num_stages``.

    With these versions every copy runs exactly as far ahead as Triton's. A ``wgmma`` reads shared
    memory while the next body already runs, which takes one more. Where loads feed the addresses of
    others, the levels share the stages.

    Parameters
    ----------
    stages : int
        Triton's ``num_stages``, S.
    kind : str
        ``"mma.sync"`` for kernels that copy with ``cp.async`` and multiply with ``mma.sync``, or do
        not multiply at all; ``"wgmma"`` for those that multiply with ``wgmma``.
    level, levels : int
        0 for what a product reads, 1 for indices that a copy of level 0 reads, and so on; levels of
        the loop, 1 without indirect loads.

    Returns
    -------
    int
        At least 1. One version of operands of S >= 2 is copied asynchronously by Triton, and here
        with ``async_copy=True``; for a level above 0 one version means that Triton does not stage
        these indices.

    Raises
    ------
    ScheduleError
        If an argument is none of these.

    Examples
    --------
    >>> [versions_for_triton_stages(s) for s in (1, 2, 3, 4)]
    [1, 1, 2, 3]
    >>> versions_for_triton_stages(3, "wgmma")
    3

    Operands gathered by indices, and the indices:

    >>> [versions_for_triton_stages(s, levels=2) for s in (2, 3, 4, 5, 6)]
    [1, 1, 1, 2, 2]
    >>> [versions_for_triton_stages(s, level=1, levels=2) for s in (2, 3, 4, 5, 6)]
    [1, 2, 2, 3, 3]
    """
    number, of, at = whole(stages), whole(levels), whole(level)
    if number is None or number < 1:
        raise ScheduleError(f"Triton's num_stages is an int >= 1, not {stages!r}.")
    if kind not in _TRITON_LESS:
        raise ScheduleError(f'kind must be "mma.sync" or "wgmma", not {kind!r}.')
    if of is None or of < 1 or at is None or not 0 <= at < of:
        raise ScheduleError(
            f"levels is an int >= 1 and level one of 0 to levels - 1, not {level!r} of {levels!r}."
        )
    kept = min(of, number - 1)
    if at >= kept:
        return 1
    latency = (number - 1) // kept
    return latency + (1 if at else 1 - _TRITON_LESS[kind])


def check_num_stages(value: Any) -> int:
    """Return a number of versions as an int.

    Raises
    ------
    ScheduleError
        If it is no integer, below 1, or more than a loop can count.
    """
    number = whole(value)
    if number is None or number < 1:
        raise ScheduleError(f"double_buffer needs an int num_stages >= 1, not {value!r}.")
    if number > _MOST:
        raise ScheduleError(f"double_buffer needs num_stages <= {_MOST}, not {number}.")
    return number


def check_async_copy(value: Any) -> int | None:
    """Return a request for asynchronous copies as an annotation has it; None leaves it open.

    Raises
    ------
    ScheduleError
        If it is neither True, False, ``"auto"`` nor ``"tma"``.
    """
    if isinstance(value, str) and value == "auto":
        return None
    if isinstance(value, str) and value == "tma":
        return BY_TMA
    if isinstance(value, bool):
        return int(value)
    raise ScheduleError(f'async_copy must be True, False, "auto" or "tma", not {value!r}.')


def double_buffer(
    sch: Any, block: Any, num_stages: int = 2, *, async_copy: bool | str = "auto"
) -> None:
    """Keep ``num_stages`` versions of the buffer that a cache block fills.

    Called ``double_buffer`` in TVM's classic schedules. The annotations are traced; passes rewrite
    the loop around the copy when it lowers (docs/pipelines.md)::

        # before                                   # after, in outline
        for k in range(8):                         A_shared[0] = A[tile 0]
            A_shared = A[tile k]                   for k in range(8):
            use(A_shared)                              wait; barrier
                                                       if k + 1 < 8:
                                                           A_shared[(k + 1) % 2] = A[tile k + 1]
                                                       use(A_shared[k % 2])

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``double_buffer``.
    block : SBlockRV or str
        The block that fills the buffer, usually one that ``cache_read`` made.
    num_stages : int
        Number of versions; 1 leaves the program as it is, unless ``async_copy`` is True. Of several
        calls the last one counts.
    async_copy : bool, "auto" or "tma"
        ``"auto"`` copies with ``cp.async`` where target, width, type and alignment allow it, and
        through registers where not; True refuses the latter when lowering; False never does;
        ``"tma"`` is for tiles that ``wgmma`` multiplies.

    Raises
    ------
    ScheduleError
        If an argument is not legal, there is no such block, or it writes more than one buffer.
    """
    versions = check_num_stages(num_stages)
    asynchronous = check_async_copy(async_copy)
    block = find_block(sch, block, "double_buffer")
    written = [region.source.name for region in sch.get(block).writes]
    if len(written) != 1:
        raise ScheduleError(
            f"double_buffer needs a block that writes one buffer; "
            f"{sch.get(block).name_hint} writes {len(written)} ({', '.join(written)})."
        )
    # TVM's annotate keeps the value that is there already; here the last call counts.
    for key in (NUM_STAGES, ASYNC_COPY):
        if key in sch.get(block).annotations:
            sch.unannotate(block, key)
    sch.annotate(block, NUM_STAGES, versions)
    if asynchronous is not None:
        sch.annotate(block, ASYNC_COPY, asynchronous)
