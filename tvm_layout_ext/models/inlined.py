"""Functions whose elementwise blocks are inlined: what most rules begin with."""

from __future__ import annotations

from typing import NamedTuple

from tvm import s_tir, tirx

from ..analysis.contraction import Contraction
from ..schedules._generic import inline


class _Inlined(NamedTuple):
    func: tirx.PrimFunc
    schedule: s_tir.Schedule
    products: dict[str, Contraction]


_last: _Inlined | None = None


def inlined(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, dict[str, Contraction]]:
    """Make a schedule of a function as :func:`.inline` leaves it, and tell its products by block.

    The rules ask for the same function one after the other, so the last one is kept.
    """
    global _last
    if _last is None or not _last.func.same_as(func):
        schedule = s_tir.Schedule(func)
        _last = _Inlined(func, schedule, inline(schedule))
    return _last.schedule.copy(), dict(_last.products)
