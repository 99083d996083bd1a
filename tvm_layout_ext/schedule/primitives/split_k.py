"""``sch.split_k``: cut the summed loop of a product into slices, blocks of their own each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...analysis.contraction import Contraction, read_contraction
from ...checks import whole_number
from ...errors import ScheduleError
from ..handles import find_block
from ..merge_iterators import check_loops, merge_iterators


@dataclass(frozen=True)
class SplitK:
    """What :func:`split_k` leaves to the user to place: blocks."""

    #: The product of a slice of K, for ``use_tensor_core`` or a schedule of your own; its slices
    #: are a batch. It writes the workspace.
    partial: Any
    sum: Any  #: Adds the slices up, in their order; what was computed from the product reads it
    #: Operands with their indices merged to one m, n and k, and filled up with zeros to whole
    #: slices. Inline them once ``use_tensor_core`` has made its own copies.
    copies: tuple[Any, ...]
    length: int  #: Terms of a slice


def split_k(sch: Any, block: Any, slices: int, *, multiple: int = 1) -> SplitK:
    """Cut the sum of a product into slices, whose partial sums a second block adds up.

    A product of few tiles leaves multiprocessors idle; slices are blocks more. The partial sums lie
    in a workspace of ``slices`` times the size of the product and are added in their order, so that
    results do not vary from run to run. Where K is no multiple of ``slices * multiple``, the last
    slices are filled up with zeros.

    ::

        # before                               # after, slices=2
        for i, j, k in T.grid(M, N, K):        for s, i, j, k in T.grid(2, M, N, K / 2):
            C[i, j] += A[i, k] * B[k, j]           C_rf[s, i, j] += A[i, s * (K / 2) + k] * ...
                                               for i, j, s in T.grid(M, N, 2):
                                                   C[i, j] += C_rf[s, i, j]

    Parameters
    ----------
    block : SBlockRV or str
        A product as ``use_tensor_core`` takes it, its loops not touched yet.
    slices : int
        How many; no more than K has parts of ``multiple``.
    multiple : int
        Terms of a slice are a multiple of this: the tile of K.
    """
    count = whole_number("slices of split_k", slices, 1, ScheduleError)
    step = whole_number("multiple of split_k", multiple, 1, ScheduleError)
    block = find_block(sch, block, "split_k")
    what = read_contraction(sch.get(block))
    check_loops(sch, block, what, "split_k")
    terms = what.sizes[2]
    parts = -(-terms // step)
    if count > parts:
        raise ScheduleError(
            f"split_k cannot cut the {terms} terms of block "
            f"{sch.get(block).name_hint} into {count} slices of multiples of {step}; "
            f"1 to {parts} are legal."
        )
    length = -(-parts // count) * step
    copies = merge_iterators(sch, block, what)
    if copies:
        what = read_contraction(sch.get(block))
    copies += _filled(sch, block, what, count * length)
    (depth,) = what.depth
    loop = sch.get_loops(block)[depth]
    outer, _ = sch.split(loop, [count, length])
    partial = sch.rfactor(outer, 0)
    loops = list(sch.get_loops(partial))
    slice_loop = loops.pop(depth)
    sch.reorder(slice_loop, *loops)
    return SplitK(partial, block, copies, length)


def _filled(sch: Any, block: Any, what: Contraction, depth: int) -> tuple[Any, ...]:
    """Fill the operands up with zeros along K; the blocks that do so."""
    if depth == what.sizes[2]:
        return ()
    multiples = [1] * len(what.extents)
    multiples[what.depth[0]] = depth
    sch.pad_einsum(block, multiples)
    return tuple(sch.get_producers(block))
