"""The rule for depthwise convolutions and pools: windows that slide in registers of a thread."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ...schedules._windows import KNOBS, find_windows, slide
from ..rule import Scheduled


def by_windows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule a function of one sum of windows by :func:`.slide`; None for any other one."""
    del target
    sch = s_tir.Schedule(func)
    blocks = [sch.get(one) for one in sch.get_child_blocks(sch.get_sblock("root"))]
    sums = [one for one in blocks if one.init is not None]
    if len(sums) != 1 or find_windows(sums[0]) is None:
        return None
    name = str(sums[0].name_hint)
    told = slide(sch, name, {one.name: one.default for one in KNOBS})
    return Scheduled(sch, f"{name} {told}")
