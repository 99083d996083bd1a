"""The rule for depthwise convolutions and pools: windows that slide in registers of a thread."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.target import Target

from ...schedules._windows import KNOBS, cut_of, find_windows, slide
from ..any_size.whole_tiles import whole_strips
from ..rule import Scheduled

_CONFIG = {one.name: one.default for one in KNOBS}


def by_windows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Schedule a function of one sum of windows by :func:`.slide`; None for any other one.

    Rows of symbolic length are whole strips, of which only what there is is read and stored.
    """
    del target
    sch = s_tir.Schedule(func)
    blocks = [sch.get(one) for one in sch.get_child_blocks(sch.get_sblock("root"))]
    sums = [one for one in blocks if one.init is not None]
    found = find_windows(sums[0]) if len(sums) == 1 else None
    if found is None:
        return None
    name, own = str(sums[0].name_hint), sums[0].iter_vars
    sizes = [one.dom.extent for one in own if one.iter_type == one.DataPar]
    cut = [one for one in sizes[1:] if isinstance(one, tirx.Var)]
    if not cut:
        return Scheduled(sch, f"{name} {slide(sch, name, _CONFIG)}")
    whole = whole_strips(func, cut, cut_of(own[found.column].dom.extent, _CONFIG))
    sch = s_tir.Schedule(whole.func)
    told = slide(sch, name, _CONFIG)
    return Scheduled(whole.schedule(sch), f"{name} {told}")
