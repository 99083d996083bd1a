"""Convolutions as products: the window of an output pixel is a row of a matrix."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from ..analysis.contraction import iterators_of, read_contraction
from ..errors import ScheduleError
from ..tune.space.off_tensor_cores import is_product


def unfold(sch: s_tir.Schedule) -> list[Any]:
    """Let sums of products over windows read copies in which every iterator has its own index.

    The copies are to be inlined into those of tiles, so that no matrix of windows is ever stored::

        # before                                     # after
        for y, x, f, r, s, c in T.grid(...):         for y, x, r, s, c in T.grid(...):
            C[y, x, f] += P[y + r, x + s, c] * W         W[y, x, r, s, c] = P[y + r, x + s, c]
    """
    copies = []
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        node = sch.get(block)
        if not is_product(node) or _is_contraction(node):
            continue
        for at, region in enumerate(node.reads):
            if any(not _is_plain(node, one.min) for one in region.region):
                copies.append(sch.reindex(block, ("read", at)))
    return copies


def _is_contraction(block: Any) -> bool:
    try:
        read_contraction(block)
    except ScheduleError:
        return False
    return True


def _is_plain(block: Any, index: Any) -> bool:
    return isinstance(index, tirx.IntImm) or bool(iterators_of(block, index))
