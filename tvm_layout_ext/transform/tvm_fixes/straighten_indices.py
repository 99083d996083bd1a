"""Let an access that walks a whole dense array say so, however its loops were fused.

TVM 0.27 sees that ``A[f // 33, f % 33]`` is element ``f`` only before it splits ``f`` into block,
thread and vector. Afterwards it takes the vector for a gather and moves it element by element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    """Indices as quotients and remainders of one expression, if they are such."""

    def __init__(self, walked: Any, bounds: Any) -> None:
        self.walked, self.var = walked, tirx.Var("walked", walked.ty)
        known, self.analyzer = bounds.const_int_bound(walked), tvm.sym.Analyzer()
        if 0 <= known.min_value <= known.max_value < _UNBOUNDED:
            ends = (known.min_value, known.max_value + 1)
            limits = tvm.ir.Range(*(tirx.IntImm(walked.ty.dtype, n) for n in ends))
            self.analyzer.bind(self.var, limits)
        self.rules = [(kind, self._swapped) for kind in _QUOTIENTS]
        self.known: dict[int, tuple[Any, bool]] = {}

    def of(self, index: _Index) -> tuple[Any, bool]:
        """An index by the walked variable, and whether each of its quotients is one of that."""
        if index.number not in self.known:
            swapped = tvm_ffi.structural_map(index.value, self.rules, order="post")
            is_pure = all(depends_on(node, self.var) for node in nodes_in(swapped, *_QUOTIENTS))
            self.known[index.number] = swapped, is_pure
        return self.known[index.number]

    def _swapped(self, node: Any) -> Any:
        same = tvm_ffi.structural_equal(node.a, self.walked)
        return type(node)(self.var, node.b) if same else node

    def offset(self, extents: Sequence[Any], indices: Sequence[_Index], most: int) -> Any | None:
        """Offset of some indices, if it keeps at most so many quotients."""
        offset = self.of(indices[0])[0]
        for extent, index in zip(extents[1:], indices[1:], strict=True):
            offset = offset * extent + self.of(index)[0]
        offset = self.analyzer.simplify(offset)
        return substitute(offset, {self.var: self.walked}) if _quotients(offset) <= most else None


class _Index(NamedTuple):
    """An index; equal ones have the same number."""

    value: Any
    number: int
    quotients: int


def _quotients(value: Any) -> int:
    return len(nodes_in(value, *_QUOTIENTS))


class _Straight:
    """Rewrites the accesses of a block by what is known in it."""

    def __init__(self, bounds: Any, arrays: _Arrays) -> None:
        self.bounds, self.arrays = bounds, arrays
        # Unrolled loops have the same indices many times.
        self.numbers: dict[Any, int] = {}
        self.walks: dict[int, list[_Walk]] = {}

    def access(self, buffer: Any, indices: Any) -> tuple[Any, list[Any]] | None:
        """The buffer with indices that give the same offset with fewer quotients, or None."""
        if not self.arrays.may_walk(buffer, indices):
            return None
        made = [self._index(value) for value in indices]
        for is_whole in (True, False):
            first = 0
            while first < len(made) - 1:
                first = self._run(buffer.shape, made, first, is_whole) or first + 1
        same = all(one.value.same_as(other) for one, other in zip(made, indices, strict=True))
        return None if same else (buffer, [one.value for one in made])

    def _run(self, shape: Any, indices: list[_Index], first: int, is_whole: bool) -> int | None:
        """Straighten the longest run of indices from one on; return where it ends, if any does."""
        walks = self._walks(indices[first])
        pure = [_pure(walk, indices, first) for walk in walks]
        for end in range(len(indices), first + 1, -1):
            most = 0 if is_whole else sum(one.quotients for one in indices[first:end]) - 1
            for walk, until in zip(walks, pure, strict=True):
                # No sum takes away quotients of something else.
                if most > 0 or (most == 0 and end <= until):
                    offset = walk.offset(shape[first:end], indices[first:end], most)
                    if offset is not None:
                        zeros = (one.value * 0 for one in indices[first : end - 1])
                        indices[first:end] = map(self._index, (*zeros, offset))
                        return end
        return None

    def _index(self, value: Any) -> _Index:
        number = self.numbers.setdefault(tvm_ffi.StructuralKey(value), len(self.numbers))
        return _Index(value, number, _quotients(value))

    def _walks(self, index: _Index) -> list[_Walk]:
        if index.number not in self.walks:
            found = _different(_numerators(index.value))
            self.walks[index.number] = [_Walk(one, self.bounds) for one in found]
        return self.walks[index.number]


def _pure(walk: _Walk, indices: Sequence[_Index], first: int) -> int:
    """Where the indices from one on end whose quotients are all of a walk's expression."""
    end = first
    while end < len(indices) and walk.of(indices[end])[1]:
        end += 1
    return end


class _Arrays:
    """Which accesses may walk over an array, asked once for each buffer."""

    def __init__(self) -> None:
        self.dense: dict[int, bool] = {}

    def may_walk(self, buffer: Any, indices: Any) -> bool:
        """Whether there are several indices of a dense array in global memory, and quotients."""
        return self.is_dense(buffer) and any(
            nodes_in(index, *_QUOTIENTS) for index in list(indices)[:-1]
        )

    def is_dense(self, buffer: Any) -> bool:
        """Whether a buffer is an array of several dims in global memory without gaps."""
        key = buffer.__chandle__()
        if key not in self.dense:
            is_global = len(buffer.shape) > 1 and buffer.scope() == "global"
            self.dense[key] = is_global and not list(buffer.ty.strides)
        return self.dense[key]

    def any_in(self, stmt: Any) -> bool:
        """Whether a statement has such an access."""
        for one in nodes_in(stmt, tvm.ir.TensorLoad, tirx.BufferStore):
            buffer = one.buffer if isinstance(one, tirx.BufferStore) else one.source
            if self.is_dense(buffer) and self.may_walk(buffer, one.indices):
                return True
        return False


def _different(expressions: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for one in expressions:
        if not any(tvm_ffi.structural_equal(one, other) for other in found):
            found.append(one)
    return found


def _in_block(realize: Any, bounds: Any, arrays: _Arrays) -> Any:
    """Straighten the indices of a block; its predicate bounds them, too."""
    with bounds.constraint_scope(realize.predicate):
        block = with_accesses(realize.block, _Straight(bounds, arrays).access)
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
    arrays = _Arrays()
    if not arrays.any_in(func.body):
        return func
    bounds = ranges_known(func.body)
    return mapped(func, (s_tir.SBlockRealize, lambda one: _in_block(one, bounds, arrays)))
