"""Compute a sigmoid that is rounded to 16 bits by the GPU's quick instructions.

``1 / (1 + expf(-x))`` takes nvcc 13.0 some 30 instructions an element, one of them a branch before
which no later load begins. ``__expf`` and ``__fdividef`` (CUDA Programming Guide, "Intrinsic
Functions") are off by less than 2^-16 of a result that 16 bits round by 2^-12 or 2^-9, and are 10.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..ir import ops
from ..ir.queries import is_call_of
from .base import function_pass, mapped

_NARROW, _WIDE = ("float16", "bfloat16"), "float32"


def _rounded(cast: Any) -> Any:
    """Let a value be computed quickly that is rounded to 16 bits at once."""
    kinds = [str(one.ty).partition("x")[0] for one in (cast, cast.value)]
    if kinds[0] not in _NARROW or kinds[1] != _WIDE:
        return cast
    value = _factors(cast.value)
    return cast if value.same_as(cast.value) else tirx.Cast(cast.ty, value)


def _factors(value: Any) -> Any:
    """Let the sigmoids among the factors of a product be quick."""
    if not isinstance(value, tirx.Mul):
        return _quick(value) if is_call_of(value, ops.SIGMOID) else value
    factors = _factors(value.a), _factors(value.b)
    is_same = factors[0].same_as(value.a) and factors[1].same_as(value.b)
    return value if is_same else tirx.Mul(*factors)


def _quick(call: Any) -> Any:
    kind, (value,) = call.ty, call.args
    lanes = int(kind.dtype.lanes)
    one, none = (
        tirx.Broadcast(tirx.const(n, _WIDE), lanes) if lanes > 1 else tirx.const(n, _WIDE)
        for n in (1, 0)
    )
    power = tirx.call_pure_extern(kind, "__expf", none - value)
    return tirx.call_pure_extern(kind, "__fdividef", one, one + power)


@function_pass()
def QuickSigmoids(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that computes sigmoids quickly that are factors of a result of 16 bits.

    Leaves alone: those that are added to anything first, or rounded to no 16 bits.
    """
    return mapped(func, (tirx.Cast, _rounded))
