"""Write the kernels of attention that ``sch.fuse_attention`` asked for."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock

from ... import decisions
from ...analysis.attention import read_attention
from ...errors import ScheduleError
from ...gpu.hardware import architecture
from ...gpu.warpgroups import WARPGROUP_ROWS
from ...intrin import asynchronous
from ...ir.annotations import ATTENTION
from ...ir.contents import contents
from ...ir.queries import variables
from ...ir.rebuild import block_with, realize_with, sequence
from ...ir.walk import top_statements
from ...target import target_arch
from ..base import function_pass
from ..hopper.lower_warpgroups import launched
from ..hopper.places import divided_as_places
from .kernel import AttentionKernel
from .parts import PartResults
from .persistent import PersistentKernel
from .plan import PANEL, AttentionPlan, checked


@function_pass(asks=ATTENTION)
def LowerAttention(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that computes attention in one kernel, without scores in memory.

    Annotation ``layout_ext.attention`` of the block that multiplies by V has six numbers: keys of a
    tile, stages, warpgroups that multiply, blocks that share keys, tiles before those, and blocks
    that take tiles in turns. Where rows are symbolic, a seventh is how many are promised at
    most, 0 for any::

        # before                        # after, for each 64 rows of a warpgroup
        S = Q * K                       for keys: S = Q * K; W, top, sum = weights of S
        top = max(S); W = exp(S - top)      O = O * (what the earlier ones are worth) + W * V
        sum = sum(W)                    O / sum -> shared memory -> TMA
        O = W / sum * V

    Raises
    ------
    ScheduleError
        If the blocks around it are no attention, or the GPU, TMA, registers or shared memory do not
        allow the kernel.
    """
    blocks = contents(func.body).nodes(SBlock)
    for block in (one for one in blocks if ATTENTION in one.annotations):
        name, wanted = str(block.name_hint), [int(n) for n in block.annotations[ATTENTION]]
        attention = read_attention(func, name)
        takes = 6 if isinstance(attention.sizes[0], int) else 7
        if len(wanted) != takes:
            raise ScheduleError(
                f"Block {name} asks for attention by {wanted}; it takes {takes} numbers."
            )
        plan = checked(AttentionPlan(attention, *wanted), architecture(target_arch(func)))
        decisions.note("LowerAttention", name, plan.told())
        func = _with_kernel(func, plan)
    return func


def _with_kernel(func: tirx.PrimFunc, plan: AttentionPlan) -> tirx.PrimFunc:
    """Put the kernel in the place of the statement that writes the result; drop the others."""
    places = plan.attention.places
    parts = PartResults.of(plan) if plan.splits > 1 else None
    kernel = _kernel(plan, parts)
    left = [
        kernel if place == places[-1] else stmt
        for place, stmt in enumerate(top_statements(func))
        if place == places[-1] or place not in places
    ]
    root = func.body.block
    # Once for all buffers: a walk of the kernel takes 8 ms.
    used = {one.__chandle__() for stmt in left for one in variables(stmt)}
    kept = [buffer for buffer in root.alloc_buffers if buffer.__chandle__() in used]
    kept += [] if parts is None else [parts.means, parts.rows]
    block = block_with(root, body=sequence(left), alloc_buffers=kept)
    return func.with_body(realize_with(func.body, block))


def _kernel(plan: AttentionPlan, parts: PartResults | None) -> Any:
    rows = {"q": (plan.q, plan.rows), "k": (plan.k, plan.keys), "v": (plan.v, plan.keys)}
    if plan.bias is not None:
        rows["bias"] = (plan.bias, plan.rows)
    if plan.stores_by_box:
        rows["o"] = (plan.result.target, WARPGROUP_ROWS)
    maps, host = {}, []
    for side, (boxed, count) in rows.items():
        box = boxed.box((count, PANEL))
        map_of = asynchronous.tensor_map(boxed.buffer, boxed.extents, box, boxed.folded)
        maps[side], statements = map_of
        host += statements
    kernel = PersistentKernel(plan, maps) if plan.resident else AttentionKernel(plan, maps, parts)
    sizes = plan.resident or plan.parts, plan.threads
    kernels = [launched(kernel.body(), kernel.block, kernel.thread, sizes)]
    kernels += [] if parts is None else [parts.combine()]
    if not isinstance(plan.parts, int):
        kernels = [*map(divided_as_places, kernels)]
    return sequence([*host, *kernels])
