"""``sch.specialize_warps``: some warpgroups multiply, another one copies for them."""

from __future__ import annotations

from typing import Any

from ...checks import whole
from ...errors import ScheduleError
from ...ir.annotations import PERSISTENT, PRODUCERS
from ..handles import find_loop, legal


def specialize_warps(sch: Any, loop: Any, *, producers: int = 1) -> None:
    """x"""
    nest = find_loop(sch, loop, "specialize_warps")
    with legal(f"specialize_warps of loop {nest.loop_var.name}"):
        sch.bind(loop, "threadIdx.y")
    sch.annotate(loop, PRODUCERS, producers)


def persistent(sch: Any, loop: Any) -> None:
    """x"""
    find_loop(sch, loop, "persistent")
    sch.annotate(loop, PERSISTENT, 1)
