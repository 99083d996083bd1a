"""Masks that hide the keys outside of a band, as causal ones and those of sliding windows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...ir.queries import size_of
from ..relax_values import array_of, calls_operator, extents_of, has_shape, name_of, rewritten

#: What hides a key: PyTorch adds the lowest number of a type, or minus infinity.
_LOW = -1e4


@dataclass(frozen=True)
class Band:
    """Rows that see the keys from ``row + first`` to ``row + last``, as with a sliding window.

    ``hidden`` is the lowest number that is added to other scores.
    """

    rows: int
    keys: int
    first: int
    last: int
    hidden: float

    @classmethod
    def of(cls, mask: np.ndarray[Any, Any], scores: relax.Expr) -> Band | None:
        """The band that a mask leaves of scores, of zeros and of what is far below elsewhere."""
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
        lowest = float(every[0].min())
        return cls(rows, keys, first, last, lowest) if np.array_equal(seen, band) else None

    def named(self) -> Band | str | None:
        """None where all is seen, and the name that Relax has for a causal mask."""
        if self.first > 1 - self.rows:
            return self
        forms = {self.keys - self.rows: "BottomRight", 0: "TopLeft"}
        return None if self.last == self.keys - 1 else forms.get(self.last, self)

    def bias(self, emit: Callable[[Any], Any], rank: int, dtype: str) -> relax.Expr:
        """The mask again in so many dims, of what depends on no tensor."""
        shape = (*[1] * (rank - 2), self.rows, self.keys)
        hidden = emit(relax.op.full(shape, relax.const(self.hidden, dtype)))
        above = relax.op.triu(hidden, self.last + 1)
        if self.first <= 1 - self.rows:
            return above
        below = relax.op.tril(hidden, self.first - 1)
        if self.last >= self.keys - 1:
            return below
        return relax.op.add(emit(below), emit(above))


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.MasksAsBands")
class MasksAsBands:
    """Write masks that leave a band of scores as conditions on places, which no memory holds.

    What is added stays the same, bit by bit.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        has_weights = any(calls_operator(mod, one) for one in ("nn.softmax", "exp"))
        return rewritten(mod, _AsBands) if has_weights else mod


@mutator
class _AsBands(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "add":
            return call
        scores, added = call.args
        extents, own = (extents_of(one) or () for one in call.args)
        sizes = [[size_of(one) for one in dims[-2:]] for dims in (extents, own)]
        if len(own) < 2 or sizes[0] != sizes[1] or not all(isinstance(n, int) for n in sizes[0]):
            return call
        mask = array_of(added, self.lookup_binding, repeated=True)
        if mask is None or not has_shape(call, extents):
            return call
        band = Band.of(mask, scores)
        if band is None or not np.isin(mask, (0, band.hidden)).all():
            return call
        if band.named() is None:
            return scores
        bias = band.bias(self.builder_.emit, len(extents), str(call.ty.dtype))
        return relax.op.add(scores, self.builder_.emit(bias))
