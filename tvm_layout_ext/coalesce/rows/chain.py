"""Reading a chain: blocks that reduce the same rows, compute elements of them, or of their sums.

A chain is read into expressions of a few names: the iterators of rows and of what is in a row, one
name for each load that threads keep, and one for each buffer that the chain writes. A name gets its
place when the kernel is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ...errors import ScheduleError
from ...ir.annotations import DONE, FUSE_ROWS, asks_for_something
from ...ir.conditions import analyzer_of
from ...ir.queries import (
    are_equal,
    blocks_in,
    is_among,
    is_number,
    loads_in,
    size_of,
    substitute,
    uses,
    variables,
)
from ...ir.walk import statements_of, top_statements
from ..checks import check_reach
from .reducer import Reducer, read_reducer

NAME = "fuse_rows"
_DATA, _REDUCED = tirx.IterVar.DataPar, tirx.IterVar.CommReduce


@dataclass(frozen=True)
class RowLoad:
    """A load of an input that differs along the row, under the name that stands for it."""

    name: Any
    buffer: Any
    indices: tuple[Any, ...]
    by_row: bool


@dataclass(frozen=True)
class RowStore:
    """What a block computes: the name for its reads, the buffer, where in it, and the value.

    Of a reduction the value is what an element adds.
    """

    name: Any
    buffer: Any
    indices: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class RowBlock:
    """A block of a chain: a ``sum`` (any reduction), ``elements``, or a value for each ``row``.

    ``level`` tells how many reductions, one after the other, come before it.
    """

    label: str
    kind: str
    stores: tuple[RowStore, ...]
    reducer: Reducer | None = None
    level: int = 0


@dataclass
class RowChain:
    """Blocks over the same rows; rows, and what is in one, may have several dims."""

    rows: list[Any]
    columns: list[int]
    row_vars: list[Any]
    column_vars: list[Any]
    #: Of indices.
    type: Any
    blocks: list[RowBlock] = field(default_factory=list)
    loads: list[RowLoad] = field(default_factory=list)
    #: Buffers that others have or read, so that they are stored.
    outputs: list[Any] = field(default_factory=list)
    #: Statements of the function's outermost block that the chain is.
    places: list[int] = field(default_factory=list)
    #: Buffers that the function allocates, of which passes keep what they see accessed.
    made: list[Any] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.columns)

    @property
    def levels(self) -> int:
        """One more than reductions that come one after the other, at most."""
        return 1 + max(block.level for block in self.blocks)

    def is_output(self, store: RowStore) -> bool:
        """Whether what a block computes leaves the kernel."""
        return is_among(store.buffer, self.outputs)


def read_chain(func: tirx.PrimFunc, names: Sequence[str]) -> RowChain:
    """Read the blocks of a function that form a chain.

    Raises ScheduleError if they form none.
    """
    found = {str(nest.block.name_hint): (i, nest) for i, nest in _nests(func)}
    for name in names:
        if name not in found:
            raise ScheduleError(
                f"{NAME} needs blocks in loops of their own, not bound to threads or vectorized, "
                f"directly in their function; {name} is not."
            )
    chosen = {name: nest for name, nest in found.items() if name in names}
    nests = [nest for _, nest in chosen.values()]
    chain = _shape(nests)
    chain.places = [place for place, _ in chosen.values()]
    chain.made = list(func.body.block.alloc_buffers)
    _check_between(func, chain, list(chosen))
    blocks = [_read_block(chain, nest) for nest in nests]
    chain.outputs = _outputs(func, chain, blocks)
    _check_order(blocks)
    known: list[tuple[RowStore, int]] = []
    for block in blocks:
        named = _with_names(chain, block, [store for store, _ in known])
        asked = [n for s, n in known if any(uses(own.value, s.name) for own in named.stores)]
        chain.blocks.append(replace(named, level=max(asked, default=0)))
        after = chain.blocks[-1].level + (named.kind == "sum")
        known += [(store, after) for store in named.stores]
    return chain


def _nests(func: tirx.PrimFunc) -> list[tuple[int, Any]]:
    """Blocks that stand alone in plain loops, with the statement's place."""
    found = []
    plain = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)
    for place, stmt in enumerate(top_statements(func)):
        while isinstance(stmt, tirx.For) and stmt.kind in plain:
            stmt = stmt.body
        if isinstance(stmt, s_tir.SBlockRealize) and stmt.block.iter_vars:
            found.append((place, stmt))
    return found


def _axes(block: Any, kind: int) -> list[Any]:
    """Axes of a kind that have more than one iteration."""
    return [
        a for a in block.iter_vars if int(a.iter_type) == kind and not is_number(a.dom.extent, 1)
    ]


def _reduces(block: Any) -> bool:
    return any(int(axis.iter_type) == _REDUCED for axis in block.iter_vars)


def _shape(nests: Sequence[Any]) -> RowChain:
    """Take rows and columns from the first reduction."""
    nest = next((nest for nest in nests if _reduces(nest.block)), None)
    if nest is None:
        listed = ", ".join(str(nest.block.name_hint) for nest in nests)
        raise ScheduleError(f"{NAME} needs a reduction along the rows; {listed} reduce nothing.")
    rows, columns = (_axes(nest.block, kind) for kind in (_DATA, _REDUCED))
    lengths = [axis.dom.extent for axis in columns]
    if not all(isinstance(n, tirx.IntImm) for n in lengths):
        raise ScheduleError(
            f"{NAME} needs rows of a known length; those of {nest.block.name_hint} have "
            f"{' x '.join(map(str, lengths))} elements."
        )
    return RowChain(
        [axis.dom.extent for axis in rows],
        [int(n) for n in lengths],
        [tirx.Var(f"row{i}", axis.var.ty) for i, axis in enumerate(rows)],
        [tirx.Var(f"column{i}", axis.var.ty) for i, axis in enumerate(columns)],
        nest.block.iter_vars[0].var.ty,
    )


def _check_between(func: tirx.PrimFunc, chain: RowChain, names: Sequence[str]) -> None:
    for place in range(chain.places[0], chain.places[-1]):
        if place not in chain.places:
            blocks = [str(b.name_hint) for b in blocks_in(top_statements(func)[place])]
            raise ScheduleError(
                f"{NAME} puts {names[0]} to {names[-1]} into one kernel, but "
                f"{', '.join(blocks) or 'a statement'} stands between them."
            )


def _read_block(chain: RowChain, nest: Any) -> RowBlock:
    """Read a block over the names of the chain's iterators."""
    block, name = nest.block, str(nest.block.name_hint)
    if not is_number(nest.predicate, 1):
        raise ScheduleError(
            f"Block {name} runs only where {nest.predicate} holds; {NAME} needs all of its rows."
        )
    asked = [str(key) for key in block.annotations if _is_other(str(key))]
    if asked:
        raise ScheduleError(
            f"Block {name} asks for {asked[0]}, too, which a kernel of {NAME} leaves no place for."
        )
    data, sums = (_axes(block, kind) for kind in (_DATA, _REDUCED))
    ones = [axis for axis in block.iter_vars if is_number(axis.dom.extent, 1)]
    if len(data) + len(sums) + len(ones) != len(block.iter_vars):
        raise ScheduleError(f"An axis of block {name} keeps its order; {NAME} takes none of these.")
    axes, own, extents = [*data, *sums], chain.row_vars, chain.rows
    kind = "sum" if _reduces(block) else "elements"
    if kind == "elements" and (not chain.columns or len(axes) == len(own)):
        kind = "row"
    else:
        own, extents = [*own, *chain.column_vars], [*extents, *chain.columns]
    has = [axis.dom.extent for axis in axes]
    alike = len(has) == len(own) and all(map(_equal, has, extents))
    if not alike or (kind == "sum" and len(sums) != len(chain.columns)):
        raise ScheduleError(
            f"{NAME} needs blocks over the same rows, here {_product(chain.rows)} of "
            f"{_product(chain.columns)} elements; block {name} goes over {_product(has)}."
        )
    values = dict(zip((axis.var for axis in axes), own, strict=True))
    values |= {axis.var: axis.dom.min for axis in ones}
    stores = _stores(name, block.body, values)
    if kind != "sum":
        return RowBlock(name, kind, stores)
    starts = _stores(name, block.init, values) if block.init is not None else ()
    reducer, parts = read_reducer(name, stores, starts)
    stores = tuple(replace(s, value=part) for s, part in zip(stores, parts, strict=True))
    return RowBlock(name, kind, stores, reducer)


def _is_other(key: str) -> bool:
    return asks_for_something(key) and not key.startswith((FUSE_ROWS, DONE))


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm.sym.Analyzer().can_prove_equal(one, other))


def _product(extents: Sequence[Any]) -> str:
    return " x ".join(str(size_of(one)) for one in extents) or "1"


def _stores(name: str, body: Any, values: dict[Any, Any]) -> tuple[RowStore, ...]:
    """List what a body stores, with its ``let`` values in the place of their names."""
    values = dict(values)
    found: list[RowStore] = []
    for stmt in statements_of(body):
        if isinstance(stmt, tirx.Bind):
            values[stmt.var] = substitute(stmt.value, values)
        elif isinstance(stmt, tirx.BufferStore):
            if any(load.source.same_as(s.buffer) for s in found for load in loads_in(stmt.value)):
                raise ScheduleError(
                    f"Block {name} reads {found[0].buffer.name} after it stores it; {NAME} needs "
                    "values that are computed before."
                )
            at = tuple(_plain(substitute(index, values)) for index in stmt.indices)
            named = tirx.Var(str(stmt.buffer.name), stmt.buffer.dtype)
            found.append(RowStore(named, stmt.buffer, at, substitute(stmt.value, values)))
        else:
            raise ScheduleError(
                f"Block {name} is opaque; {NAME} takes blocks of stores and let statements."
            )
    return tuple(found)


def _plain(index: Any) -> Any:
    return tvm.sym.Analyzer().simplify(index)


def _check_order(blocks: Sequence[RowBlock]) -> None:
    """Refuse what is computed twice, in place, or read before it is computed."""
    written: list[Any] = []
    for i, block in enumerate(blocks):
        own = [store.buffer for store in block.stores]
        later = [store.buffer for other in blocks[i:] for store in other.stores]
        reads = [x.source for store in block.stores for x in loads_in(store.value)]
        for buffer in [*own, *reads]:
            check_reach(buffer, block.label)
        for buffer in [
            *(b for b in later if is_among(b, reads)),
            *(b for b in own if is_among(b, written)),
        ]:
            raise ScheduleError(
                f"Block {block.label} reads {buffer.name} before it is written, or writes it after "
                f"another block did; {NAME} needs a buffer for each result."
            )
        written += own


def _outputs(func: tirx.PrimFunc, chain: RowChain, blocks: Sequence[RowBlock]) -> list[Any]:
    """Buffers of the chain that the caller has, or that others read."""
    inner = list(func.body.block.alloc_buffers)
    rest = [s for i, s in enumerate(top_statements(func)) if i not in chain.places]
    read = [var for stmt in rest for var in variables(stmt)]
    buffers = [store.buffer for block in blocks for store in block.stores]
    return [b for b in buffers if not is_among(b, inner) or is_among(b, read)]


def _with_names(chain: RowChain, block: RowBlock, known: Sequence[RowStore]) -> RowBlock:
    """Put names in the place of loads: of what the chain computed, and of what threads keep."""

    def load(node: Any, mutator: Any) -> Any:
        at = [_plain(index) for index in node.indices]
        for store in known:
            if not node.source.same_as(store.buffer):
                continue
            if not are_equal(at, store.indices):
                raise ScheduleError(
                    f"Block {block.label} reads {node.source.name}[{', '.join(map(str, at))}], but "
                    f"its threads have only {node.source.name}"
                    f"[{', '.join(map(str, store.indices))}]."
                )
            return store.name
        name = _name_of(chain, node.source, tuple(at))
        return mutator.default_mutate(node) if name is None else name

    def named(value: Any) -> Any:
        return tvm_ffi.structural_mutate(value, [(tvm.ir.TensorLoad, load)])

    return replace(block, stores=tuple(replace(s, value=named(s.value)) for s in block.stores))


def _name_of(chain: RowChain, buffer: Any, at: tuple[Any, ...]) -> Any | None:
    """Name a load along the row that may go ahead of its use; None for any other."""
    along, by_row = (
        any(uses(index, var) for index in at for var in variables)
        for variables in (chain.column_vars, chain.row_vars)
    )
    by_row = by_row or not chain.row_vars  # A single row shares nothing.
    if not along or any(loads_in(index) for index in at) or not _is_inside(chain, buffer, at):
        return None
    for known in chain.loads:
        if known.buffer.same_as(buffer) and are_equal(known.indices, at):
            return known.name
    name = tirx.Var(f"{buffer.name}_{len(chain.loads)}", buffer.dtype)
    chain.loads.append(RowLoad(name, buffer, at, by_row))
    return name


def _is_inside(chain: RowChain, buffer: Any, at: Sequence[Any]) -> bool:
    """Whether an element is in its buffer for every row and column, whatever asks for it."""
    extents = [*chain.rows, *chain.columns]
    analyzer = analyzer_of(zip([*chain.row_vars, *chain.column_vars], extents, strict=True))
    return all(
        analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
        for index, extent in zip(at, buffer.shape, strict=True)
    )
