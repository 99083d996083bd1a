"""Let a sum of products start at what is added to it afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ... import decisions
from ...ir.annotations import START, TENSOR_CORE
from ...ir.queries import loads_in
from ...ir.rebuild import block_with, whole_region
from ..base import function_pass
from .dot_add_match import Fusion, Unfused, match_function

__all__ = ["FuseDotAdd"]

_NAME = "FuseDotAdd"


class _FusionWriter:
    """Writes the blocks of fusions anew."""

    def __init__(self, fusions: Sequence[Fusion]) -> None:
        self.fusions = fusions

    def block(self, block: Any, mutator: Any) -> Any:
        """Visit a block."""
        for one in self.fusions:
            if one.tile is not None and block.same_as(one.tile):
                return _started(mutator.default_mutate(block))
            if block.same_as(one.clear):
                return _cleared(block, one)
            if block.same_as(one.add):
                return _without_addition(block, one)
        return mutator.default_mutate(block)


def _started(block: Any) -> Any:
    """Ask for sums that start at an addend, in the place of an intrinsic that clears them.

    The tile's reads stay those of its instruction: the inside of ``init`` says what that reads.
    """
    multiply = str(block.annotations[TENSOR_CORE][0])
    annotations = {**dict(block.annotations.items()), TENSOR_CORE: [multiply, START]}
    return block_with(block, annotations=annotations)


def _cleared(block: Any, one: Fusion) -> Any:
    """Store the addend where there was a zero."""
    point = [tvm.ir.Range.from_min_extent(index, 1) for index in one.addend.indices]
    read = tirx.BufferRegion(one.addend.source, point)
    if one.start is not one.addend:
        read = whole_region(one.addend.source)
    reads = [*block.reads, read]
    if block.init is None:
        store = tirx.BufferStore(block.body.buffer, one.start, block.body.indices)
        return block_with(block, reads=reads, body=store)
    init = tirx.BufferStore(block.init.buffer, one.start, block.init.indices)
    return block_with(block, reads=reads, init=init)


def _without_addition(block: Any, one: Fusion) -> Any:
    """Take the sums for what they were added to."""

    def taken(node: Any) -> Any:
        return one.load if node.same_as(one.addition) else node

    body = tvm_ffi.structural_map(block.body, [(tirx.Add, taken)], order="pre")
    loaded = [load.source for load in loads_in(body)]
    reads = [r for r in block.reads if any(r.source.same_as(buffer) for buffer in loaded)]
    return block_with(block, reads=reads, body=body)


@function_pass("FuseDotAdd")
def _fuse_dot_add(func: tirx.PrimFunc) -> tirx.PrimFunc:
    found = match_function(func)
    for one in found:
        decisions.note(_NAME, str(one.sums.name), _told(one))
    fusions = [one for one in found if isinstance(one, Fusion)]
    if not fusions:
        return func
    rules = [(SBlock, _FusionWriter(fusions).block)]
    return func.with_body(tvm_ffi.structural_mutate(func.body, rules))


def _told(one: Fusion | Unfused) -> str:
    if isinstance(one, Unfused):
        return one.why
    return f"starts at {one.addend.source.name}, which block {one.add.name_hint} added"


def FuseDotAdd() -> Any:
    """Create the pass that adds to a sum of products by letting the sum start there.

    Triton's combine pass makes ``dot(a, b, d)`` of ``dot(a, b, 0) + d``, so that the addition costs
    nothing and its operand is loaded while the first tiles are::

        # before                                   # after
        with T.init(): P[i, j] = 0                 with T.init(): P[i, j] = C[i, j]
        P[i, j] = P[i, j] + A[i, k] * B[k, j]      P[i, j] = P[i, j] + A[i, k] * B[k, j]
        D[i, j] = relu(P[i, j] + C[i, j])          D[i, j] = relu(P[i, j])

    Sums of tensor cores, too: their fragments are then loaded from ``C``, each lane what it holds,
    in the place of the instruction that clears them; beyond a ragged edge they start at zero. The
    rules are Triton's: the sums start at zero, nothing else reads them, and the addend has their
    type. Floating-point sums are rounded in another order by this, as they are in Triton. Runs
    before any pass that maps or tensorizes sums.

    Does not handle, and leaves alone: sums that are read anywhere else, addends that the function
    itself writes, or of another type, or that are more than one element of a buffer (Triton fuses
    any value), sums by several threads, and those that ``auto_coalesce`` maps. For each sum to
    which something is added, the decisions tell what was done, or why it was not.
    """
    return _fuse_dot_add
