"""``masked_scatter``: a tensor with the elements of another, in order, where a mask is true."""

from __future__ import annotations

from math import prod
from typing import Any

from torch import fx
from tvm import relax

from .sizes import is_symbolic


def masked_scatter(importer: Any, node: Any) -> Any:
    """Convert a node; rows are gathered where the mask is the same along the last dims.

    So models of vision and language put rows of an image in the place of some tokens. A true
    element takes the row of the other tensor whose number is that of true elements before it.
    """
    data, mask, source = node.args
    emit, env = importer.block_builder.emit, importer.env
    if any(is_symbolic(one.meta["val"]) for one in (data, source)):
        raise ValueError("masked_scatter has a kernel of known sizes alone")
    mask = _before_repeated(mask)
    shape, given = [*data.meta["val"].shape], [*mask.meta["val"].shape]
    given = [*[1] * (len(shape) - len(given)), *given]
    same, size = len(shape), source.meta["val"].numel()
    while same and given[same - 1] == 1 and size % prod(shape[same - 1 :]) == 0:
        same -= 1
    inside = prod(shape[same:])
    holds = emit(relax.op.reshape(env[mask], [*given[:same], *[1] * (len(shape) - same)]))
    holds = emit(relax.op.broadcast_to(holds, [*shape[:same], *[1] * (len(shape) - same)]))
    flat = emit(relax.op.astype(emit(relax.op.reshape(holds, [-1])), "int64"))
    counts = emit(relax.op.cumsum(flat, 0, "int64"))
    before = emit(relax.op.subtract(counts, relax.const(1, "int64")))
    # No place is behind the last row: torch wants enough of them.
    first = emit(relax.op.maximum(before, relax.const(0, "int64")))
    numbers = emit(relax.op.minimum(first, relax.const(size // inside - 1, "int64")))
    rows = emit(relax.op.reshape(env[source], [size // inside, inside]))
    found = emit(relax.op.reshape(emit(relax.op.take(rows, numbers, 0)), shape))
    return emit(relax.op.where(holds, found, env[data]))


def _before_repeated(mask: Any) -> Any:
    """The mask that is repeated along dims of one element, or the mask itself."""
    while isinstance(mask, fx.Node) and str(mask.target) == "aten.expand.default":
        mask = mask.args[0]
    return mask
