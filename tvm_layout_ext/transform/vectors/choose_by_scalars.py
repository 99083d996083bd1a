"""Choose between vectors by one condition, where TVM's CUDA has one for each element.

TVM 0.27 keeps the conditions of a ``Select`` of vectors in a variable of the values' type, which
does not compile: ``float4 v = make_ushort4(...)``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...ir.contents import contents
from ..base import function_pass, mapped


def _choice(node: Any) -> Any:
    if not isinstance(node.condition, tirx.Broadcast):
        return node
    return tirx.if_then_else(node.condition.value, node.true_value, node.false_value)


@function_pass()
def ChooseByScalars(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that chooses whole vectors where all elements have one condition.

    So has ``where(mask[:, None], x, 0)``, whose rows a mask hides::

        Select(T.Broadcast(mask[i] > 0, 4), x[i, j:j+4], T.Broadcast(0, 4))   # before
        T.if_then_else(mask[i] > 0, x[i, j:j+4], T.Broadcast(0, 4))           # after
    """
    if not contents(func.body).nodes(tirx.Select):
        return func
    return mapped(func, (tirx.Select, _choice))
