"""Moves whose rows begin at another place inside a vector than those that they come from.

A pad or a slice copies runs of neighbours, and the distance between an element and where it comes
from changes from row to row, by other than whole vectors. Its loads cannot be vectors where its
stores are. What a vector of the result needs lies in two neighbouring aligned vectors of the
source, of which the second is the first that the lane to the right needs: so a warp loads each
aligned vector once, passes it one lane to the left, and every lane picks its elements out of two.

A vector in which a row ends needs two such windows, one for each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...analysis.nest import element_bytes
from ...errors import ScheduleError
from ...ir.conditions import conjuncts
from ...ir.ops import CHOICE
from ...ir.pointers import offset_of
from ...ir.queries import depends_on, is_number, substitute

#: Bytes that a lane needs of the source at least: shuffles pass on words of 32 bits.
_WORD_BYTES = 4
#: Types of which TVM's CUDA code has vectors of 16 bytes, if elements are whole bytes.
_TYPES = ("int", "uint", "float16", "bfloat16", "float32", "float64")
#: A comparison as ``sign * (a - b) - slack >= 0``.
_AT_LEAST = {tirx.GE: (1, 0), tirx.GT: (1, 1), tirx.LE: (-1, 0), tirx.LT: (-1, 1)}


@dataclass(frozen=True)
class Move:
    """A block that copies, casts, pads or slices: one load, one store, each element once."""

    iterators: tuple[Any, ...]  #: Iterators of the block, in the order of the result's dims
    shape: tuple[int, ...]  #: Of the result
    source: Any  #: What is read and written
    target: Any  #: What is read and written
    #: Element of the source, counted from its first, in terms of the iterators. Along the last
    #: iterator it goes up by one.
    offset: Any
    #: Conditions on which a row comes from the source, in terms of the other iterators.
    rows: tuple[Any, ...]
    first: int  #: The columns that come from the source: those from ``first`` to before ``last``
    last: int  #: The columns that come from the source: those from ``first`` to before ``last``
    value: Any  #: What is stored there
    load: Any  #: The load in it
    other: Any | None  #: What is stored elsewhere; None if all elements come from the source

    @property
    def columns(self) -> int:
        """Elements of a row of the result."""
        return self.shape[-1]

    @property
    def total(self) -> int:
        """Elements of the result."""
        return prod(self.shape)

    @property
    def source_size(self) -> int:
        """Elements of the source."""
        return prod(int(n) for n in self.source.shape)

    @property
    def is_by_words(self) -> bool:
        """Whether elements are parts of words, and stored as they were loaded."""
        return element_bytes(self.source) < _WORD_BYTES and bool(self.value.same_as(self.load))

    def gap(self, vector: int) -> int:
        """Elements between two rows of a pad, if the vectors of one row have all of the next, too.

        Rows that follow each other in the source, with no more than one element behind each: a
        vector that begins behind a row's end then begins where the next one does. 0 if there is no
        such gap.
        """
        gap = self.columns - (self.last - self.first)
        is_pad = len(self.shape) > 1 and self.other is not None and self.columns - self.last <= 1
        return gap if is_pad and self.is_by_words and 0 < gap < vector else 0


def read_move(block: Any) -> Move | None:
    """Recognise a block that moves elements; None if it does anything else.

    Raises ScheduleError if it moves elements, but in a form that shifted vectors do not do; says
    which.
    """
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not block.iter_vars:
        return None
    condition, value, other = _choice(store.value)
    load = _moved(value)
    # A source without dims is one element for all.
    if load is None or not load.indices or (other is not None and not _is_constant(other)):
        return None
    name = block.name_hint
    _check_buffers(name, load.source, store.buffer)
    iterators = _iterators(block, store)
    if iterators is None:
        return None
    offset = tvm.sym.Analyzer().simplify(offset_of(load.source, load.indices))
    if not _goes_along(offset, iterators):
        return None
    shape = tuple(int(n) for n in store.buffer.shape)
    rows, first, last = _bounds(name, condition, iterators, shape[-1])
    return Move(
        iterators,
        shape,
        load.source,
        store.buffer,
        offset,
        tuple(rows),
        first,
        last,
        value,
        load,
        other,
    )


def _choice(value: Any) -> tuple[list[Any], Any, Any]:
    """Parts of the condition of a value, the value, and what is taken otherwise."""
    if isinstance(value, tvm.ir.Call) and value.op.name == CHOICE:
        condition, then, other = value.args
        return conjuncts(condition), then, other
    if isinstance(value, tirx.Select):
        return conjuncts(value.condition), value.true_value, value.false_value
    return [], value, None


def _moved(value: Any) -> Any | None:
    """The load that a value is, but for casts."""
    while isinstance(value, tirx.Cast):
        value = value.value
    return value if isinstance(value, tvm.ir.TensorLoad) else None


def _is_constant(value: Any) -> bool:
    while isinstance(value, tirx.Cast):
        value = value.value
    return isinstance(value, tirx.IntImm | tirx.FloatImm)


def _check_buffers(name: str, source: Any, target: Any) -> None:
    for buffer in (source, target):
        if buffer.scope() != "global":
            raise ScheduleError(f"block {name} accesses {buffer.name} in {buffer.scope()} memory")
        if any(not isinstance(n, tirx.IntImm) for n in buffer.shape):
            raise ScheduleError(f"the shape of {buffer.name} is symbolic")
        if buffer.ty.strides or not is_number(buffer.ty.elem_offset, 0):
            raise ScheduleError(f"{buffer.name} has strides or an element offset of its own")
    if source.same_as(target):
        raise ScheduleError(f"block {name} writes {source.name} where it reads it")


def _iterators(block: Any, store: Any) -> tuple[Any, ...] | None:
    """Iterators of a block whose store takes each element of the buffer once, by its dims."""
    own = {it.var.__chandle__(): it for it in block.iter_vars}
    found = [
        own.pop(index.__chandle__(), None) for index in store.indices if isinstance(index, tirx.Var)
    ]
    if own or len(found) != len(store.indices):
        return None
    for it, size in zip(found, store.buffer.shape, strict=True):
        if it is None or it.iter_type != tirx.IterVar.DataPar:
            return None
        if not is_number(it.dom.min, 0) or not is_number(it.dom.extent, int(size)):
            return None
    return tuple(it.var for it in found if it is not None)


def _goes_along(offset: Any, iterators: tuple[Any, ...]) -> bool:
    """Whether the offset is made of iterators alone, and the last one moves it by one."""
    step = substitute(offset, {iterators[-1]: iterators[-1] + 1}) - offset
    return _is_of(offset, iterators) and is_number(tvm.sym.Analyzer().simplify(step), 1)


def _is_of(expr: Any, iterators: tuple[Any, ...]) -> bool:
    """Whether an expression is arithmetic of iterators, without loads, calls and other sizes."""
    others: list[Any] = []
    look = [(kind, others.append) for kind in (tvm.ir.TensorLoad, tvm.ir.Call)]
    tvm_ffi.structural_walk(expr, look)
    names = {var.__chandle__() for var in iterators}
    used = tirx.analysis.undefined_vars(expr)
    return not others and all(var.__chandle__() in names for var in used)


def _bounds(
    name: str, condition: list[Any], iterators: tuple[Any, ...], columns: int
) -> tuple[list[Any], int, int]:
    """Part a condition in that of rows and the first and last column."""
    column = iterators[-1]
    rows: list[Any] = []
    first, last = 0, columns
    analyzer = tvm.sym.Analyzer()
    for part in condition:
        if not _is_of(part, iterators):
            raise ScheduleError(f"the condition {part} of block {name} is not of its indices alone")
        if not depends_on(part, column):
            rows.append(part)
            continue
        at_least = _AT_LEAST.get(type(part))
        if at_least is None:
            raise ScheduleError(f"the condition {part} of block {name} is no bound of its columns")
        sign, slack = at_least
        difference = (part.a - part.b) * sign - slack
        start = analyzer.simplify(substitute(difference, {column: column * 0}))
        step = analyzer.simplify(substitute(difference, {column: column + 1}) - difference)
        if not isinstance(start, tirx.IntImm) or not (is_number(step, 1) or is_number(step, -1)):
            raise ScheduleError(f"the condition {part} of block {name} is no bound of its columns")
        if int(step) > 0:
            first = max(first, -int(start))
        else:
            last = min(last, int(start) + 1)
    return rows, first, last


def vector_of(move: Move, vector_bytes: int) -> int:
    """Elements of a vector: the wider of the two types fills the widest instruction wanted."""
    return vector_bytes // max(element_bytes(move.source), element_bytes(move.target))


def why_not(move: Move, vector: int) -> str:
    """Say why a move cannot go by shifted vectors, or nothing."""
    size = element_bytes(move.source)
    if vector * size < _WORD_BYTES or vector == 1:
        return f"a vector has {vector} elements of {size} bytes, not the 4 bytes of a shuffle"
    if move.columns < 2 * vector:
        return f"rows of {move.columns} are too short for vectors of {vector}"
    if move.first >= move.last:
        return f"no column comes from {move.source.name}"
    for buffer in (move.source, move.target):
        kind = tvm.DataType(str(buffer.dtype))
        if not str(kind).startswith(_TYPES) or kind.bits < 8:
            return f"{buffer.name} has elements of {buffer.dtype}, of which there are no vectors"
        width = vector * element_bytes(buffer)
        if (int(buffer.ty.data_alignment) or element_bytes(buffer)) % width:
            return f"{buffer.name} is not aligned to {width} bytes"
    return ""


def pieces(rest: int) -> list[tuple[int, int]]:
    """Part what is left of a vector into first elements and counts, each a power of two.

    Examples
    --------
    >>> pieces(13)
    [(0, 8), (8, 4), (12, 1)]
    """
    found: list[tuple[int, int]] = []
    first = 0
    while first < rest:
        count = 1 << ((rest - first).bit_length() - 1)
        found.append((first, count))
        first += count
    return found
