"""Put the kernels of annotated chains of rows into a function."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from ...gpu.hardware import CLUSTERS_SINCE, architecture
from ...ir.annotations import FUSE_ROWS
from ...ir.queries import blocks_in, uses
from ...ir.rebuild import block_with, realize_with, sequence
from ...ir.walk import top_statements
from ...target import capability, target_arch
from .chain import NAME, RowChain, read_chain
from .emit import RowKernel
from .plan import RowPlan, Wishes, plan_rows


def write_chains(func: tirx.PrimFunc) -> tuple[tirx.PrimFunc, dict[str, str]]:
    """Write the kernels that blocks ask for; return what is told of each, by its last block.

    Raises ScheduleError if an annotation is none, or blocks form no chain.
    """
    told: dict[str, str] = {}
    for block in (block for block in blocks_in(func.body) if FUSE_ROWS in block.annotations):
        name, wanted = str(block.name_hint), list(block.annotations[FUSE_ROWS])
        count = next((i for i, one in enumerate(wanted) if isinstance(one, str)), len(wanted))
        try:
            plan = RowPlan(*map(int, wanted[:count]))
        except (TypeError, ValueError) as error:
            raise ScheduleError(
                f"Block {name} asks {NAME} by {wanted}; it takes the {len(fields(RowPlan))} "
                "numbers of a plan, and blocks."
            ) from error
        chain = read_chain(func, [str(one) for one in wanted[count:]])
        plan = _launchable(func, chain, plan)
        told[name] = plan.text(chain)
        func = _with_kernel(func, chain, RowKernel(chain, plan).write(name))
    return func, told


def _launchable(func: tirx.PrimFunc, chain: RowChain, plan: RowPlan) -> RowPlan:
    """The plan, or the best without a cluster for a GPU that has none: it was made for another."""
    has = capability(func.attrs.get("target"))
    if plan.cluster == 1 or has == (0, 0) or has >= CLUSTERS_SINCE:
        return plan
    return plan_rows(chain, Wishes(), architecture(target_arch(func)))


def _with_kernel(func: tirx.PrimFunc, chain: RowChain, kernel: Any) -> tirx.PrimFunc:
    """Put the kernel in the place of the chain's last statement, and drop the others."""
    last = max(chain.places)
    left = [
        kernel if place == last else stmt
        for place, stmt in enumerate(top_statements(func))
        if place == last or place not in chain.places
    ]
    root = func.body.block
    kept = [b for b in root.alloc_buffers if any(uses(stmt, b) for stmt in left)]
    block = block_with(root, body=sequence(left), alloc_buffers=kept)
    return func.with_body(realize_with(func.body, block))
