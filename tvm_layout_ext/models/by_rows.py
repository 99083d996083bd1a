"""The rule for chains along rows, such as softmax and norms: one kernel reads and writes a row."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx
from tvm.target import Target

from ..errors import LayoutExtError
from .products import inlined, refuse_matrices
from .rule import Scheduled


def by_rows(func: tirx.PrimFunc, target: Target) -> Scheduled | None:
    """Put all blocks of a function into one kernel by ``fuse_rows``.

    Blocks that compute an element from elements stay in the chain where they can, so that each is
    computed once; else they are inlined first. None for a single block, or where nothing is summed.
    """
    del target  # The primitive asks for the one around.
    whole = s_tir.Schedule(func)
    if len(_blocks(whole)) < 2 or not _sums(whole):
        return None
    refuse_matrices(func)
    try:
        return _fused(whole)
    except LayoutExtError:
        return _fused(inlined(func)[0])


def _fused(sch: s_tir.Schedule) -> Scheduled:
    names = [str(sch.get(block).name_hint) for block in _blocks(sch)]
    sch.fuse_rows(names)
    return Scheduled(sch, f"{', '.join(names)} fused along rows")


def _blocks(sch: s_tir.Schedule) -> list[Any]:
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def _sums(sch: s_tir.Schedule) -> bool:
    reduced = tirx.IterVar.CommReduce
    return any(i.iter_type == reduced for b in _blocks(sch) for i in sch.get(b).iter_vars)
