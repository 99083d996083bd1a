"""Write the element offsets of parameters as the multiples that they are.

TVM 0.27's CUDA code does not know that an offset is a multiple of its ``offset_factor``: it loads a
vector element by element unless the start is provably a multiple of its length.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.queries import substitute
from ...ir.rebuild import with_accesses
from ..base import function_pass


def _offsets(func: Any) -> dict[Any, Any]:
    """Offsets of parameters that are multiples of more than one, each with its written form."""
    found = {}
    for param in func.params:
        if not hasattr(param.ty, "offset_factor"):
            continue
        offset, factor = param.ty.elem_offset, int(param.ty.offset_factor)
        if factor > 1 and isinstance(offset, tirx.Var):
            found[offset] = tirx.floordiv(offset, factor) * factor
    return found


@function_pass()
def AlignOffsets(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that writes element offsets as the multiples that they are.

    Leaves alone: offsets that are numbers or expressions.
    """
    offsets = _offsets(func)
    if not offsets:
        return func

    def written(indices: Any) -> list[Any]:
        return [substitute(index, offsets) for index in indices]

    body = with_accesses(func.body, lambda buffer, indices: (buffer, written(indices)))
    return func.with_body(body)
