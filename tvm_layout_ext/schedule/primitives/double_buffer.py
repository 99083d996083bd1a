"""``sch.double_buffer``: keep several versions of a cache, so that copying overlaps computing."""

from __future__ import annotations

from typing import Any

from ...checks import is_one_of, whole_number
from ...errors import ScheduleError
from ...ir.annotations import ASYNC_COPY, BY_TMA, NUM_STAGES
from ..handles import annotate, find_block

#: Loop variables are of type int32.
_MOST = 2**31 - 1
#: How many fewer versions than stages Triton's pipeliner keeps, by what multiplies.
_TRITON_LESS = {"mma.sync": 1, "wgmma": 0}


def versions_for_triton_stages(
    stages: int, kind: str = "mma.sync", *, level: int = 0, levels: int = 1
) -> int:
    """Number of versions N of :func:`double_buffer` for Triton's ``num_stages``.

    Every copy then runs exactly as far ahead as Triton's.

    Parameters
    ----------
    stages : int
        Triton's ``num_stages``, S.
    kind : str
        What multiplies, ``"mma.sync"`` (or nothing does), or ``"wgmma"``: that reads shared memory
        while the next body already runs, which takes one version more.
    level, levels : int
        Where loads feed the addresses of others, the levels share the stages: 0 for what a product
        reads, 1 for indices that a copy of level 0 reads, and so on.

    Examples
    --------
    >>> [versions_for_triton_stages(s) for s in (1, 2, 3, 4)]
    [1, 1, 2, 3]
    """
    number = whole_number("Triton's num_stages", stages, 1, ScheduleError)
    of = whole_number("levels", levels, 1, ScheduleError)
    at = whole_number("level", level, 0, ScheduleError, of - 1)
    if not is_one_of(kind, _TRITON_LESS):
        raise ScheduleError(f'kind must be "mma.sync" or "wgmma", not {kind!r}.')
    kept = min(of, number - 1)
    if at >= kept:
        return 1
    latency = (number - 1) // kept
    return latency + (1 if at else 1 - _TRITON_LESS[kind])


def check_num_stages(value: Any) -> int:
    """Return a number of versions as an int; refuse what a loop cannot count."""
    return whole_number("num_stages of double_buffer", value, 1, ScheduleError, _MOST)


def check_async_copy(value: Any) -> int | None:
    """Return a request for asynchronous copies as an annotation has it; None leaves it open."""
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

    Passes rewrite the loop around the copy when the program is lowered (docs/pipelines.md)::

        # before                                   # after, in outline
        for k in range(8):                         A_shared[0] = A[tile 0]
            A_shared = A[tile k]                   for k in range(8):
            use(A_shared)                              wait; barrier
                                                       if k + 1 < 8:
                                                           A_shared[(k + 1) % 2] = A[tile k + 1]
                                                       use(A_shared[k % 2])

    Parameters
    ----------
    block : SBlockRV or str
        The block that fills the buffer, usually one that ``cache_read`` made.
    num_stages : int
        Number of versions; 1 leaves the program as it is, unless ``async_copy`` is True. Of several
        calls the last one counts.
    async_copy : bool, "auto" or "tma"
        ``"auto"`` copies with ``cp.async`` where target, width, type and alignment allow it, and
        through registers where not; True refuses the latter when lowering; False never does;
        ``"tma"`` is for tiles that ``wgmma`` multiplies.
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
    annotate(sch, block, NUM_STAGES, versions)
    annotate(sch, block, ASYNC_COPY, asynchronous)
