"""Kernels of warpgroups whose number of rows each call has: one for few, and one for many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import tvm
from tvm import tirx

from ...gpu.hardware import Architecture
from ...ir.annotations import MARK
from ...ir.queries import USUAL_BATCH, blocks_in, is_number, substitute, uses
from ...transform.hopper.any_size import with_rows
from ...transform.hopper.lower_warpgroups import lowered
from ..rule import Scheduled, few_or_many
from .whole_tiles import resized, whole_tiles

#: Calls of up to so many rows have a kernel of their own. Tiles, and by ``mma.sync`` slices, are
#: chosen for so few, and tiles for so many.
MOST_FEW, FEW, MANY = 128, 64, 1024
#: Schedules a function of so many rows; None where ``wgmma`` does not compute it.
KnownRows = Callable[[tirx.PrimFunc, int], Scheduled | None]


def of_any_rows(
    func: tirx.PrimFunc,
    arch: Architecture,
    known: KnownRows,
    otherwise: Callable[[], Scheduled | None],
) -> Scheduled | None:
    """Few rows, and many, as ``known`` schedules them; ``otherwise`` has few where it does not.

    None where more than rows is symbolic.
    """
    whole = whole_tiles(func)
    if whole is None or whole.rows is None or whole.computed:
        return None
    merged, (size, _) = whole.merged, whole.counts[0]
    own = merged.func if merged else func
    if not _is_leading(own):
        return None
    # Sequences of one length have as many rows as some of them.
    length = int(tvm.sym.Analyzer().modular_set(whole.rows).coeff)
    tokens = max(1, ceil(length * USUAL_BATCH / MANY)) * MANY if length > 1 else MANY

    def of(rows: int) -> Scheduled | None:
        found = _as_if_of(own, size, rows, arch, known)
        if found is None:
            return None
        made, text = found
        values = dict(zip(made.params, own.params, strict=True))
        body = substitute(made.body, values)
        made = tirx.PrimFunc(own.params, body, func.ret_type, attrs=func.attrs)
        made = (merged.restored(made) if merged else made).with_attr(MARK, 1)
        return Scheduled.of(made, text)

    many = of(tokens)
    if many is None:
        return None
    few = of(FEW) or otherwise()
    return few and few_or_many(whole.rows, MOST_FEW, few, many)


def _as_if_of(
    func: tirx.PrimFunc, size: Any, rows: int, arch: Architecture, known: KnownRows
) -> tuple[tirx.PrimFunc, str] | None:
    """The kernel for so many rows, lowered, which then has the number of each call."""
    found = known(resized(func, {size: tirx.IntImm(size.ty, rows)}), rows)
    if found is None:
        return None
    resize = partial(with_rows, read=rows, rows=tirx.Cast("int32", size))
    made = lowered(found.function, arch, resize)
    return None if _others_have(made, func, size) else (made, found.text)


def _others_have(made: tirx.PrimFunc, own: tirx.PrimFunc, size: Any) -> bool:
    """Whether another nest than the kernel's has as many rows as were read, which are others."""
    _, *nests = reversed(blocks_in(made.body))
    if not nests:
        return False
    buffers = [*own.params, *own.body.block.alloc_buffers]

    def has(buffer: Any) -> bool:
        return any(uses(n, size) for n in getattr(buffer, "shape", ()))

    counted = {str(one.name) for one in buffers if has(one)}
    regions = [region for one in nests for region in (*one.reads, *one.writes)]
    return any(str(region.source.name) in counted for region in regions)


def _is_leading(func: tirx.PrimFunc) -> bool:
    """Whether of each parameter only the first of several dims is symbolic."""
    shapes = [list(param.shape) for param in func.params if hasattr(param, "shape")]
    for shape in shapes:
        while len(shape) > 1 and is_number(shape[0], 1):
            del shape[0]
    return all(isinstance(n, tirx.IntImm) for shape in shapes for n in shape[1:])
