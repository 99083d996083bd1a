"""``sch.prefetch``: load fragments one step before they are multiplied."""

from __future__ import annotations

from typing import Any

from ...errors import ScheduleError
from ...transform.prefetch.prefetch_registers import PREFETCH
from ..handles import find_block, written_places


def prefetch(sch: Any, block: Any) -> None:
    """Load what a block fills one step of its unrolled loop ahead, into registers of its own.

    For the loads of fragments from shared memory, ``a_fragment`` and ``b_fragment`` of
    ``use_tensor_core``: while one step is multiplied, the fragments of the next are on their way.
    In a loop that ``double_buffer`` or ``pipeline`` made deeper than one stage, the last step of a
    tile loads the first fragments of the next tile, and the copies are shared out over the steps.
    It takes the fragments' registers twice, or three times where the number of steps is odd.
    Triton's ``TritonGPUPrefetch``::

        tc = sch.use_tensor_core("product")
        ...
        sch.compute_at(tc.a_fragment, ki)
        sch.prefetch(tc.a_fragment)

    Parameters
    ----------
    block : SBlockRV or str
        The block that loads, in an unrolled loop with its consumer.
    """
    block = find_block(sch, block, "prefetch")
    node = sch.get(block)
    if [region.source.scope() for region in node.writes] not in (["local"], ["warp"]):
        raise ScheduleError(
            f"prefetch needs a block that fills one buffer in registers, scope local or warp; "
            f"{node.name_hint} writes {written_places(node)}."
        )
    sch.annotate(block, PREFETCH, 1)
