"""Convolutions as products: the window of an output pixel is a row of a matrix."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from ..analysis.contraction import iterators_of
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
        if not is_product(node):
            continue
        folded = [any(not _is_plain(node, at.min) for at in one.region) for one in node.reads]
        if any(folded):
            # Weights of one pixel have indices of extent 1 that the windows' copy has not.
            copies += [sch.reindex(block, ("read", at)) for at in range(len(folded))]
    return copies


def _is_plain(block: Any, index: Any) -> bool:
    """Whether an index is a number, an iterator, or several that count it through."""
    if isinstance(index, tirx.IntImm):
        return True
    extents = [block.iter_vars[i].dom.extent for i in iterators_of(block, index)]
    return len(extents) == 1 or (bool(extents) and 1 not in map(int, extents))
