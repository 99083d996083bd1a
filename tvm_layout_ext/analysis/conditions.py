"""Taking conditions apart."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from .._compat import LIKELY

__all__ = ["conjuncts"]


def conjuncts(condition: Any) -> list[Any]:
    """Parts of a condition that must all hold, without TVM's ``likely`` around them."""
    if isinstance(condition, tirx.And):
        return [*conjuncts(condition.a), *conjuncts(condition.b)]
    if isinstance(condition, tvm.ir.Call) and condition.op.name == LIKELY:
        return conjuncts(condition.args[0])
    return [condition]
