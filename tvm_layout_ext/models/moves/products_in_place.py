"""Batches of products read heads where they are, so that no permutation of them is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, te
from tvm.relax.expr_functor import PyExprMutator, mutator

from ...gpu.warpgroups import MAP_PITCH_BYTES
from ...ir.annotations import INPUT_PRECISION, TF32
from ...target import has_warpgroups_around
from ..relax_values import axes_of, bound_to, dims_of, name_of, rewritten, slices_of
from ..tf32 import MATMUL

#: TVM's number of the pattern of a product: what follows it element by element ends it.
_ENDED_BY_ELEMENTS = 4
#: Elements of 32 bits at whose multiples TMA copies rows.
_PITCH = MAP_PITCH_BYTES // 4


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ProductsInPlace")
class ProductsInPlace:
    """Write a batch of products of ``float32`` as one that ``wgmma`` takes as tf32.

    Attention without a kernel is two of them. Its queries and keys are parts of matrices of all
    heads, permuted; TMA reads them in place. Of 32 bits ``wgmma`` wants what is summed side by
    side, so that values are stored turned, which takes as long as the permutation that they need
    anyway. Products stay whose rows TMA does not copy, as of weights of 197 keys.

    ``tf32`` are the kinds of products that may be rounded (:mod:`..tf32`).
    """

    def __init__(self, tf32: Iterable[str]) -> None:
        self.is_rounded = MATMUL in tf32

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not self.is_rounded or not has_warpgroups_around():
            return mod
        return relax.transform.DeadCodeElimination()(rewritten(mod, _InPlace))


@dataclass(frozen=True)
class _InSource:
    """A value as elements of another one.

    ``places`` has for each dim of ``source`` the dim of the value that counts it, or ``~n`` where
    it is number ``n`` for all elements.
    """

    source: Any
    places: tuple[int, ...]

    def index(self, at: Sequence[Any]) -> list[Any]:
        """The place of an element in the source."""
        return [at[place] if place >= 0 else ~place for place in self.places]

    @property
    def has_pitch(self) -> bool:
        """Whether TMA copies rows of the source."""
        return (dims_of(self.source) or [1])[-1] % _PITCH == 0


@mutator
class _InPlace(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "matmul":
            return call
        a, b = map(dims_of, call.args)
        if a is None or b is None or any(str(one.ty.dtype) != "float32" for one in call.args):
            return call
        rank = len(a)
        if rank < 3 or a[:-2] != b[:-2] or min(a[-2], b[-1]) == 1:
            return call
        rows, columns = map(self._read, call.args)
        k, n = rank - 2, rank - 1  # Dims of B; that of A that is summed is the last, too.
        if columns.places[-1] == n and rows.has_pitch:  # Which are weights of as many keys.
            turned = [*range(k), n, k]
            value = self.builder_.emit(relax.op.permute_dims(call.args[1], turned))
            columns = _InSource(value, tuple(turned))
        is_taken = (rows.places[-1], columns.places[-1]) == (n, k)
        if not is_taken or not rows.has_pitch or not columns.has_pitch:
            return call
        return self._product(rows, columns, a[-1], [*a[:-1], b[-1]])

    def _product(self, a: _InSource, b: _InSource, terms: int, shape: Sequence[int]) -> relax.Expr:
        def product(*sources: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, terms), name="k")

            def value(*at: Any) -> Any:
                (*batch, m, n) = at
                left, right = a.index([*batch, m, k]), b.index([*batch, k, n])
                return te.sum(sources[0](*left) * sources[-1](*right), axis=k)

            return te.compute(shape, value, name="NT_matmul", attrs={INPUT_PRECISION: TF32})

        how = {"primfunc_name_hint": "NT_matmul"}
        pattern = {"op_pattern": _ENDED_BY_ELEMENTS}
        right = b.source
        if a.source.same_as(right):  # Tensor cores need two buffers, of which one may be a view.
            right = self.builder_.emit(relax.op.reshape(right, dims_of(right)))
        return self.builder_.call_te(product, a.source, right, **how, primfunc_attrs=pattern)

    def _read(self, value: Any) -> _InSource:
        """What a value is made from by permutations, and by slices of one element."""
        places = [*range(len(dims_of(value) or ()))]
        while (found := self._source(value, places)) is not None:
            value, places = found
        return _InSource(value, tuple(places))

    def _source(self, value: Any, places: Sequence[int]) -> tuple[Any, list[int]] | None:
        """What a value is made from in one step, and places of its dims."""
        call = bound_to(value, self.lookup_binding)
        name = name_of(call)
        if name == "permute_dims":
            found = dict(zip(axes_of(call), places, strict=True))
            return call.args[0], [found[axis] for axis in range(len(places))]
        source = dims_of(call.args[0]) if name in ("reshape", "squeeze", "strided_slice") else None
        if source is None:
            return None
        if name == "strided_slice":
            return self._sliced(call, places)
        rest = iter(zip(dims_of(value) or (), places, strict=True))
        made = [(1, ~0) if extent == 1 else next(rest, (0, 0)) for extent in source]
        is_same = [extent for extent, _ in made] == source and next(rest, None) is None
        return (call.args[0], [place for _, place in made]) if is_same else None

    def _sliced(self, call: Any, places: Sequence[int]) -> tuple[Any, list[int]] | None:
        axes, begins, *_ = slices_of(call) or ([], [])
        made = [*places]
        for axis, begin in zip(axes, begins, strict=True):
            if made[axis] >= 0 or begin < 0:
                return None
            made[axis] = ~(~made[axis] + begin)
        return (call.args[0], made) if axes else None
