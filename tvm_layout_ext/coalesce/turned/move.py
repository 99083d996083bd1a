"""Blocks that turn rows into columns: where their elements come from and go to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym.iter_affine_map import IterMapLevel
from tvm.tirx import IterVar

from ...analysis.nest import element_bytes, steps_of
from ...gpu.hardware import MAX_ACCESS_BYTES, SECTOR_BYTES
from ...ir.pointers import strides_of
from ...ir.queries import is_number, loads_in, substitute, variables

#: Types of which TVM's CUDA code has vectors of 16 bytes, if elements are whole bytes.
_TYPES = ("int", "uint", "float16", "bfloat16", "float32", "float64")
#: Bytes that a row must have at least, on either side.
_ROW_BYTES = 64


@dataclass(frozen=True)
class Dim:
    """A dim of the iterations; both sides walk it evenly."""

    extent: int
    load: int  #: Elements of the source from one iteration to the next
    store: int  #: The same of the result


@dataclass(frozen=True)
class Turn:
    """A block that stores what it loads, perhaps computed with, in another order."""

    source: Any
    target: Any
    kind: str  #: Type of the block's iterators
    starts: tuple[int, int]  #: Elements of source and result of the first iteration
    outer: tuple[Dim, ...]  #: All dims but the two that follow
    row: Dim  #: Along it the source is contiguous
    column: Dim  #: Along it the result is
    value: Any  #: What is stored
    load: Any  #: The load in it

    @property
    def load_vector(self) -> int:
        """Elements of 16 bytes of the source."""
        return MAX_ACCESS_BYTES // element_bytes(self.source)

    @property
    def store_vector(self) -> int:
        """Elements of 16 bytes of the result."""
        return MAX_ACCESS_BYTES // element_bytes(self.target)

    @property
    def loads_askew(self) -> bool:
        """Whether rows of the source begin inside of vectors."""
        steps = [self.starts[0], self.column.load, *(dim.load for dim in self.outer)]
        return any(step % self.load_vector for step in steps)

    @property
    def stores_askew(self) -> bool:
        """Whether rows of the result begin inside of sectors."""
        return self._is_cut(SECTOR_BYTES // element_bytes(self.target))

    @property
    def unit(self) -> int:
        """Elements at whose multiples a row of the result is cut: a sector, or a vector."""
        bytes_of = SECTOR_BYTES if self.stores_askew else MAX_ACCESS_BYTES
        return bytes_of // element_bytes(self.target)

    @property
    def cuts_vectors(self) -> bool:
        """Whether rows of the result begin or end inside of vectors."""
        vector = self.store_vector
        return self._is_cut(vector) or self.column.extent % vector > 0

    def _is_cut(self, unit: int) -> bool:
        steps = [self.starts[1], self.row.store, *(dim.store for dim in self.outer)]
        return any(step % unit for step in steps)


def read_turn(block: Any) -> Turn | None:
    """Recognise a block that turns rows into columns; None if it does anything else."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not block.iter_vars:
        return None
    loads = loads_in(store.value)
    if not loads or not all(tvm_ffi.structural_equal(one, loads[0]) for one in loads):
        return None
    load, axes = loads[0], [it for it in block.iter_vars if not is_number(it.dom.extent, 1)]
    if load.source.same_as(store.buffer) or not all(map(_is_plain, (load.source, store.buffer))):
        return None
    if not all(_is_even(it) for it in block.iter_vars) or not axes:
        return None
    named = tirx.Var("element", load.source.dtype)
    if variables(valued(store.value, load, named)) != [named]:
        return None
    ones = {it.var: it.var * 0 for it in block.iter_vars if is_number(it.dom.extent, 1)}
    own = _walk(load.source, load.indices, axes, ones)
    there = _walk(store.buffer, store.indices, axes, ones)
    if own is None or there is None:
        return None
    (first, steps), (put, places) = own, there
    extents = [int(it.dom.extent) for it in axes]
    dims = _merged([Dim(*one) for one in zip(extents, steps, places, strict=True)])
    rows, columns = ([d for d in dims if getattr(d, side) == 1] for side in ("load", "store"))
    if len(rows) != 1 or len(columns) != 1 or rows == columns:
        return None
    outer = tuple(dim for dim in dims if dim is not rows[0] and dim is not columns[0])
    kind = str(axes[0].var.ty.dtype)
    return Turn(
        load.source, store.buffer, kind, (first, put), outer, rows[0], columns[0], store.value, load
    )


def goes_through_all(block: Any, values: Sequence[Any], loops: Sequence[tuple[Any, Any]]) -> bool:
    """Whether loops, of so many iterations, take each of a block's iterations once."""
    long = [
        value
        for it, value in zip(block.iter_vars, values, strict=True)
        if not is_number(it.dom.extent, 1)
    ]
    ranges = {var: tvm.ir.Range.from_min_extent(0, extent) for var, extent in loops}
    found = tvm.sym.detect_iter_map(long, ranges, True, IterMapLevel.Bijective)
    times = prod(int(extent) for _, extent in loops)
    return bool(found.indices) and times == prod(int(it.dom.extent) for it in block.iter_vars)


def why_not(turn: Turn) -> str:
    """Say why rows cannot be turned by aligned vectors, or nothing."""
    if not turn.loads_askew and not turn.stores_askew:
        return "rows begin with vectors on one side, and with sectors on the other"
    for buffer, dim in ((turn.source, turn.row), (turn.target, turn.column)):
        size = element_bytes(buffer)
        if dim.extent * size < _ROW_BYTES:
            return f"rows of {buffer.name} have {dim.extent * size} bytes, fewer than {_ROW_BYTES}"
        if not str(buffer.dtype).startswith(_TYPES) or size > MAX_ACCESS_BYTES // 2:
            return f"{buffer.name} has elements of {buffer.dtype}, of which there are no vectors"
        if (int(buffer.ty.data_alignment) or size) % MAX_ACCESS_BYTES:
            return f"{buffer.name} is not aligned to {MAX_ACCESS_BYTES} bytes"
    return ""


def valued(value: Any, load: Any, element: Any) -> Any:
    """Put an element in the place of the loads of a value."""
    rule = (type(load), lambda node: element if tvm_ffi.structural_equal(node, load) else node)
    return tvm_ffi.structural_map(value, [rule], order="post")


def _is_plain(buffer: Any) -> bool:
    """Whether a buffer is an array of a known shape, without strides of its own."""
    has_shape = all(isinstance(n, tirx.IntImm) for n in buffer.shape) and len(buffer.shape)
    is_whole = not buffer.ty.strides and is_number(buffer.ty.elem_offset, 0)
    return bool(has_shape and is_whole and buffer.scope() == "global")


def _is_even(it: Any) -> bool:
    is_known = is_number(it.dom.min, 0) and isinstance(it.dom.extent, tirx.IntImm)
    return bool(it.iter_type == IterVar.DataPar and is_known)


def _walk(buffer: Any, indices: Any, axes: Any, ones: Any) -> tuple[int, list[int]] | None:
    """First element of an access, and its steps along the axes; None if these are not even."""
    flat: Any = 0
    for index, stride in zip(indices, strides_of(buffer), strict=True):
        flat = flat + substitute(index, ones) * stride
    steps = steps_of(flat, [it.var for it in axes])
    first = tvm.sym.Analyzer().simplify(substitute(flat, {it.var: it.var * 0 for it in axes}))
    known = isinstance(first, tirx.IntImm) and all(isinstance(s, int) and s >= 0 for s in steps)
    return (int(first), list(steps)) if known else None


def _merged(dims: list[Dim]) -> list[Dim]:
    """Join dims that both sides walk as one; the one that moves the result most comes first."""
    found: list[Dim] = []
    for dim in sorted(dims, key=lambda one: -one.store):
        last = found[-1] if found else None
        span = (dim.load * dim.extent, dim.store * dim.extent)
        if last is not None and (last.load, last.store) == span:
            found[-1] = Dim(last.extent * dim.extent, dim.load, dim.store)
        else:
            found.append(dim)
    return found
