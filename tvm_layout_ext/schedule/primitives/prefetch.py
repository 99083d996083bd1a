"""``sch.prefetch``: load fragments one step before they are multiplied."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...transform.prefetch.prefetch_registers import PREFETCH
from ..handles import find_block

#: Where registers of a thread or a warp are.
_REGISTERS = ("local", "warp")


def prefetch(sch: Any, block: Any) -> None:
    """Load what a block fills one step of its unrolled loop ahead, into registers of its own.

    For the loads of fragments from shared memory, ``a_fragment`` and ``b_fragment`` of
    ``use_tensor_core``: while one step is multiplied, the fragments of the next are on their way.
    The annotation is traced; pass ``PrefetchSharedToRegister`` rewrites the loop when it lowers.
    In a loop that ``double_buffer`` or ``pipeline`` made deeper than one stage, the last step of a
    tile loads the first fragments of the next tile, and the copies are shared out over the steps.
    It takes the fragments' registers twice, or three times where the number of steps is odd.

    Triton's ``TritonGPUPrefetch``.

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``prefetch``.
    block : SBlockRV or str
        The block that loads, in an unrolled loop with its consumer.

    Raises
    ------
    ScheduleError
        If there is no such block, or it does not fill one buffer in registers.

    Examples
    --------
    .. code-block:: python

        tc = sch.use_tensor_core("product")
        ...
        sch.compute_at(tc.a_fragment, ki)
        sch.prefetch(tc.a_fragment)
    """
    block = find_block(sch, block, "prefetch")
    node = sch.get(block)
    written = [region.source for region in node.writes]
    if len(written) != 1 or written[0].scope() not in _REGISTERS:
        places = ", ".join(f"{b.name} in {b.scope()}" for b in written) or "nothing"
        raise ScheduleError(
            f"prefetch needs a block that fills one buffer in registers, scope local or warp; "
            f"{node.name_hint} writes {places}."
        )
    sch.annotate(block, PREFETCH, 1)
