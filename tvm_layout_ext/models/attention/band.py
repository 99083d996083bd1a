"""Masks that hide the keys outside of a band, as causal ones and those of sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isinf
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import are_equal, size_of
from ..affine_values import AffineReader
from ..known_values import array_of, scalar_of
from ..relax_values import (
    extents_of,
    has_shape,
    name_of,
    operators_of,
    rewritten,
    source_of,
)

#: What hides a key: PyTorch adds the lowest number of a type, or minus infinity.
_LOW = -1e4
#: What gives elements again, in another type or more often.
COPIES = ("broadcast_to", "astype")
#: Whether a difference of whole numbers is at least a number, or at most, by comparison.
_ENDS = {
    "greater": (True, 1),
    "greater_equal": (True, 0),
    "less": (False, -1),
    "less_equal": (False, 0),
}


@dataclass(frozen=True)
class Band:
    """Rows that see the keys from ``row + first`` to ``row + last``, as with a sliding window.

    Without either bound they see the first key, or the last one. ``hidden`` is the lowest number
    that is added to other scores. Rows and keys may be of any size.
    """

    rows: Any
    keys: Any
    first: int | None
    last: int | None
    hidden: float

    @classmethod
    def of(cls, mask: np.ndarray[Any, Any], scores: relax.Expr) -> Band | None:
        """The band that a mask leaves of scores, of zeros and of what is far below elsewhere."""
        if mask.ndim < 2:
            return None
        rows, keys = mask.shape[-2:]
        every = np.reshape(mask, (-1, rows, keys))
        whole = [size_of(one) for one in (extents_of(scores) or ())[-2:]] == [rows, keys]
        if not whole or not (every == every[0]).all():
            return None
        seen = every[0] == 0
        if not (seen | (every[0] <= _LOW)).all() or not seen.any():
            return None
        # A row of which every key is as low sees all of them, unless that is minus infinity.
        if not (seen.any(-1, keepdims=True) | np.isneginf(every[0])).all():
            return None
        ahead = np.arange(keys) - np.arange(rows)[:, None]
        first, last = int(ahead[seen].min()), int(ahead[seen].max())
        band = (first <= ahead) & (ahead <= last)
        if not np.array_equal(seen, band):
            return None
        bounds = (None if first <= 1 - rows else first, None if last >= keys - 1 else last)
        return cls(rows, keys, *bounds, float(every[0].min()))

    @classmethod
    def of_places(cls, mask: Any, scores: Any, binding: Callable[[Any], Any]) -> Band | None:
        """The band that comparisons of positions leave, of as many rows as keys, of any size."""
        extents = extents_of(scores) or ()
        reader = AffineReader(binding)
        call = reader.bound(source_of(mask, COPIES, reader.bound))
        if name_of(call) != "where" or not are_equal(extents[-2:-1], extents[-1:]):
            return None
        if not are_equal((extents_of(call) or ())[-2:], extents[-2:]):
            return None
        seen, hidden = (scalar_of(one, binding) for one in call.args[1:])
        if seen != 0 or hidden is None or not hidden <= _LOW:
            return None
        bounds = _bounds(call.args[0], reader)
        if bounds is None or not bounds[0] <= 0 <= bounds[1]:
            return None
        first, last = (None if isinf(one) else int(one) for one in bounds)
        return cls(extents[-2], extents[-1], first, last, hidden)

    def named(self) -> Band | str | None:
        """None where all is seen, and the name that Relax has for a causal mask."""
        if self.first is not None or self.last is None:
            return None if self.first is None else self
        if self.last == 0:
            return "TopLeft"
        sizes = [size_of(one) for one in (self.keys, self.rows)]
        is_known = all(isinstance(one, int) for one in sizes)
        return "BottomRight" if is_known and sizes[0] - sizes[1] == self.last else self

    def bias(self, emit: Callable[[Any], Any], rank: int, dtype: str) -> relax.Expr:
        """The mask again in so many dims, of what depends on no tensor."""
        shape = (*[1] * (rank - 2), self.rows, self.keys)
        hidden = emit(relax.op.full(shape, relax.const(self.hidden, dtype)))
        parts = []
        if self.first is not None:
            parts.append(relax.op.tril(hidden, self.first - 1))
        if self.last is not None:
            parts.append(relax.op.triu(hidden, self.last + 1))
        return relax.op.add(*map(emit, parts)) if len(parts) > 1 else parts[0]


def _bounds(condition: Any, reader: AffineReader) -> tuple[float, float] | None:
    """From where to where keys are seen, counted from the row; None where it is not known so."""
    call = reader.bound(source_of(condition, ("broadcast_to",), reader.bound))
    if name_of(call) in ("logical_and", "bitwise_and"):
        found = [_bounds(one, reader) for one in call.args]
        if found[0] is None or found[1] is None:
            return None
        return max(found[0][0], found[1][0]), min(found[0][1], found[1][1])
    known = reader.of(condition)
    if known is not None and known.is_uniform and known.first:
        return -inf, inf
    apart = reader.apart(call) if name_of(call) in _ENDS else None
    if apart is None or len(apart.steps) < 2 or any(apart.steps[:-2]):
        return None
    sign, row = apart.steps[-1], apart.steps[-2]
    if abs(sign) != 1 or row != -sign:
        return None
    # sign * (key - row) + first is at least, or at most, a number.
    above, least = _ENDS[name_of(call)]
    end = sign * (least - apart.first)
    return (end, inf) if above == (sign > 0) else (-inf, end)


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MasksAsBands")
class MasksAsBands:
    """Write masks that leave a band of scores as conditions on places, which no memory holds.

    What is added stays the same, bit by bit.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        has_weights = operators_of(mod) & {"nn.softmax", "exp"}
        return rewritten(mod, _AsBands) if has_weights else mod


@mutator
class _AsBands(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.known = dict[Any, Any]()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "add":
            return call
        scores, added = call.args
        extents, own = (extents_of(one) or () for one in call.args)
        if len(own) < 2 or not are_equal(extents[-2:], own[-2:]) or not has_shape(call, extents):
            return call
        mask, band = array_of(added, self.lookup_binding, True, self.known), None
        if mask is None:
            band = Band.of_places(added, scores, self.lookup_binding)
        elif (band := Band.of(mask, scores)) is not None:
            band = band if np.isin(mask, (0, band.hidden)).all() else None
        if band is None:
            return call
        if band.named() is None:
            return scores
        bias = band.bias(self.builder_.emit, len(extents), str(call.ty.dtype))
        return relax.op.add(scores, self.builder_.emit(bias))
