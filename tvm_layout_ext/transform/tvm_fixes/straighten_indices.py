"""Let an access that walks a whole dense array say so, however its loops were fused.

TVM 0.27 sees that ``A[f // 33, f % 33]`` is element ``f`` only before it splits ``f`` into block,
thread and vector. Afterwards it takes the vector for a gather and moves it element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...ir.conditions import ranges_known
from ...ir.queries import depends_on, nodes_in, substitute
from ...ir.rebuild import realize_with, with_accesses
from ..base import function_pass, mapped

_QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)
#: What no bound of an index of 32 bits reaches.
_UNBOUNDED = (1 << 31) - 1


def _numerators(index: Any) -> list[Any]:
    """What an index, or a part of its sum, is a quotient or remainder of: of f % 12 // 4 both."""
    if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
        return [*_numerators(index.a), *_numerators(index.b)]
    if isinstance(index, tirx.Cast):
        return _numerators(index.value)
    if isinstance(index, _QUOTIENTS):
        return [index.a, *_numerators(index.a)]
    return []


class _Walk:
    """Neighbouring indices as quotients and remainders of one expression, if they are such."""

    def __init__(self, walked: Any, indices: Sequence[Any], bounds: Any) -> None:
        self.walked, self.var = walked, tirx.Var("walked", walked.ty)
        known, self.analyzer = bounds.const_int_bound(walked), tvm.sym.Analyzer()
        if 0 <= known.min_value <= known.max_value < _UNBOUNDED:
            ends = (known.min_value, known.max_value + 1)
            limits = tvm.ir.Range(*(tirx.IntImm(walked.ty.dtype, n) for n in ends))
            self.analyzer.bind(self.var, limits)
        rules = [(kind, self._swapped) for kind in _QUOTIENTS]
        self.indices = tvm_ffi.structural_map(tvm_ffi.convert(list(indices)), rules, order="post")
        #: Indices up to the first with a quotient of something else, which no sum takes away.
        self.pure = 0
        while self.pure < len(indices) and self._is_pure(self.indices[self.pure]):
            self.pure += 1

    def _swapped(self, node: Any) -> Any:
        same = tvm_ffi.structural_equal(node.a, self.walked)
        return type(node)(self.var, node.b) if same else node

    def _is_pure(self, index: Any) -> bool:
        return all(depends_on(node, self.var) for node in nodes_in(index, *_QUOTIENTS))

    def offset(self, extents: Sequence[Any], most: int) -> Any | None:
        """Offset of as many indices as there are extents, if it keeps at most so many quotients."""
        if not most and self.pure < len(extents):
            return None
        offset = self.indices[0]
        for extent, index in zip(extents[1:], self.indices[1:], strict=False):
            offset = offset * extent + index
        offset = self.analyzer.simplify(offset)
        return substitute(offset, {self.var: self.walked}) if _quotients(offset) <= most else None


def _quotients(*values: Any) -> int:
    return len(nodes_in(tvm_ffi.convert(values), *_QUOTIENTS))


def _straight(buffer: Any, indices: Any, bounds: Any) -> tuple[Any, list[Any]] | None:
    """The buffer with indices that give the same offset with fewer quotients, or None."""
    if len(indices) < 2 or buffer.scope() != "global" or list(buffer.ty.strides):
        return None
    made = list(indices)
    for is_whole in (True, False):
        first = 0
        while first < len(made) - 1:
            first = _straighten_run(buffer.shape, made, first, bounds, is_whole) or first + 1
    same = all(one.same_as(other) for one, other in zip(made, indices, strict=True))
    return None if same else (buffer, made)


def _straighten_run(
    shape: Any, indices: list[Any], first: int, bounds: Any, is_whole: bool
) -> int | None:
    """Straighten the longest run of indices from one on; return where it ends, if there is one."""
    walks: list[_Walk] = []
    walked = _different(_numerators(indices[first]))
    for end in range(len(indices), first + 1, -1):
        most = 0 if is_whole else _quotients(*indices[first:end]) - 1
        for number, one in enumerate(walked):
            if number == len(walks):
                walks.append(_Walk(one, indices[first:], bounds))
            offset = walks[number].offset(shape[first:end], most)
            if offset is not None:
                indices[first:end] = [*(i * 0 for i in indices[first : end - 1]), offset]
                return end
    return None


def _different(expressions: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for one in expressions:
        if not any(tvm_ffi.structural_equal(one, other) for other in found):
            found.append(one)
    return found


def _in_block(realize: Any, bounds: Any) -> Any:
    """Straighten the indices of a block; its predicate bounds them, too."""
    with bounds.constraint_scope(realize.predicate):
        block = with_accesses(realize.block, lambda buffer, at: _straight(buffer, at, bounds))
    return realize_with(realize, block)


@function_pass()
def StraightenIndices(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that puts an offset without quotients in the place of several indices.

    Also of some of the dims, where each side of a permutation has its own loops fused::

        A[f // 396, f % 396 // 132, f % 132 // 33, f % 33]      ->      A[0, 0, 0, f]
        A[g % 8, f // 396, f % 396 // 2, f % 2]                 ->      A[g % 8, 0, 0, f]

    The last index then runs over the end of its dim, which flattening does not mind. Where an
    offset keeps quotients, it has fewer.

    Leaves alone: buffers with strides of their own or outside global memory, indices of different
    expressions.
    """
    bounds = ranges_known(func.body)
    return mapped(func, (s_tir.SBlockRealize, lambda one: _in_block(one, bounds)))
