"""``sch.fuse_attention``: two products and the softmax between them in one kernel."""

from __future__ import annotations

from typing import Any

from ... import decisions
from ...analysis.attention import read_attention
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...ir.annotations import ATTENTION
from ...ir.block_bindings import holder_of
from ...transform.attention.fit import fit_attention
from ...transform.attention.plan import AttentionPlan
from ..handles import annotate, find_block, own_arch

NAME = "fuse_attention"


def fuse_attention(
    sch: Any,
    block: Any,
    *,
    keys: int = 0,
    stages: int = 0,
    consumers: int = 0,
    most_rows: int = 0,
) -> AttentionPlan:
    """Compute attention in one kernel of warpgroups, which keeps no scores in memory.

    Called "flash attention". Blocks that scale, hide, exponentiate and divide scores are found from
    the block, and those that permute or cast an input or the result. Each 64 rows have a
    warpgroup; another one copies K and V by TMA. GPU ``sm_90a``, ``float16`` and ``bfloat16``.

    ::

        # before                        # after, for each 64 rows of a warpgroup
        S = Q * K                       for keys: S = Q * K; W, top, sum = weights of S
        top = max(S); W = exp(S - top)      O = O * (what the earlier ones are worth) + W * V
        sum = sum(W)                    O / sum
        O = W / sum * V

    Parameters
    ----------
    sch : tvm.s_tir.Schedule
        The schedule; this function is also its method ``fuse_attention``.
    block : SBlockRV or str
        The second product, of weights and V.
    keys, stages, consumers : int
        Keys of a tile, tiles of K and V in shared memory, and warpgroups that multiply; 0 leaves a
        number to the model.
    most_rows : int
        What a symbolic number of rows never exceeds, as the caller promises; 0 for any number.

    Raises
    ------
    ScheduleError
        If the blocks are no attention, or the GPU, TMA, registers or shared memory do not allow it.
    """
    found = find_block(sch, block, NAME)
    name = str(sch.get(found).name_hint)
    holder = holder_of(sch.mod, sch.get(found))
    assert holder is not None
    gpu = architecture(own_arch(sch))
    attention = read_attention(holder[1], name)
    wished = {"keys": keys, "stages": stages, "consumers": consumers}
    if most_rows < 0:
        raise ScheduleError(f"most_rows is a number of rows, or 0 for any; {most_rows} is neither.")
    plan = fit_attention(attention, gpu, **wished, most_rows=most_rows)
    annotate(sch, found, ATTENTION, plan.numbers())
    decisions.note(NAME, name, plan.told())
    return plan
