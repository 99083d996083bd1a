"""Which loads of a block a shared tile may stand for."""

from __future__ import annotations

from collections.abc import Sequence

from ...analysis.nest import Access, Nest
from ...errors import ScheduleError
from ...ir.block_body import one_element
from ...ir.queries import loads_in
from ..guarded_loads import guarded_outside


def affine_loads(nest: Nest) -> tuple[Access, ...]:
    """Loads of global memory whose offsets are regular."""
    return tuple(access for access in nest.global_loads() if access.is_affine())


def check_staged(nest: Nest, loads: Sequence[Access]) -> None:
    """Refuse bodies some of whose loads no tile may stand for."""
    name = nest.block.name_hint
    if not one_element(nest.block.body):
        raise ScheduleError(
            f"Block {name} {_stores(nest)}, and what goes through registers is one element of each "
            "iteration"
        )
    if outside := guarded_outside(nest):
        raise ScheduleError(
            f"Block {name} reads {outside[0]} only where a condition holds, and a tile would be "
            "read outside of its shape without it"
        )
    written = [access.buffer for access in nest.accesses if access.kind != "load"]
    for access in loads:
        if any(map(loads_in, access.own_conditions)):
            raise ScheduleError(
                f"Block {name} reads {access.name} only where what it loads says so, and a tile "
                "would be read whole"
            )
        if any(access.buffer.same_as(buffer) for buffer in written):
            # TVM 0.27's reindex_cache_read takes the process down on such a block.
            raise ScheduleError(f"Block {name} writes {access.name} where it reads it")


def _stores(nest: Nest) -> str:
    """Say how many stores a block has that cannot all be one, or when it has one."""
    stores = [access for access in nest.accesses if access.kind == "store"]
    if len(stores) > 1:
        return f"has {len(stores)} stores"
    return f"stores {stores[0].name} only where a condition holds"
