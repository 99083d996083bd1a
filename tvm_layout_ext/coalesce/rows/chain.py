"""Reading a chain: blocks that reduce the same rows, compute elements of them, or of their sums.

A chain is read into expressions of a few names: the iterators of rows and of what is in a row, one
name for each load that threads keep, and one for each buffer that the chain writes. So blocks may
be put together in any way, and a name gets its place when the kernel is written.
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
from ...ir.queries import are_equal, is_load_of, loads_in, substitute, uses, variables
from ...ir.walk import statements_of
from .reducer import Reducer, read_reducer

NAME = "fuse_rows"


@dataclass(frozen=True)
class RowLoad:
    """A load of an input that differs along the row, under the name that stands for it."""

    name: Any
    buffer: Any
    indices: tuple[Any, ...]
    by_row: bool


@dataclass(frozen=True)
class RowStore:
    """What a block computes: the buffer, where in it, its value, and the name for its reads."""

    name: Any
    buffer: Any
    indices: tuple[Any, ...]
    value: Any


@dataclass(frozen=True)
class RowBlock:
    """A block of a chain.

    Attributes
    ----------
    label : str
        Its name.
    kind : str
        ``sum`` (any reduction of rows), ``elements`` (a value each) or ``row`` (a value a row).
    stores : tuple of RowStore
        Of a reduction, ``value`` is what goes into it for an element.
    reducer : Reducer, optional
        How it is combined.
    level : int
        How many reductions, one after the other, come before it.
    """

    label: str
    kind: str
    stores: tuple[RowStore, ...]
    reducer: Reducer | None = None
    level: int = 0


@dataclass
class RowChain:
    """A chain over ``rows`` rows of ``length`` elements; both have several dims at times."""

    rows: list[Any]
    columns: list[int]
    row_vars: list[Any]
    column_vars: list[Any]
    #: Of indices.
    type: Any
    blocks: list[RowBlock] = field(default_factory=list)
    loads: list[RowLoad] = field(default_factory=list)
    #: Buffers that others read, too, so that they are stored.
    outputs: list[Any] = field(default_factory=list)
    #: Statements of the function's outermost block that the chain is.
    places: list[int] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(self.columns)

    @property
    def levels(self) -> int:
        """How often threads go along the row."""
        return 1 + max(block.level for block in self.blocks)

    def is_output(self, store: RowStore) -> bool:
        """Whether what a block computes leaves the kernel."""
        return any(store.buffer.same_as(one) for one in self.outputs)


def top_statements(func: tirx.PrimFunc) -> list[Any]:
    """The statements of a function's outermost block."""
    body = func.body.block.body
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def read_chain(func: tirx.PrimFunc, names: Sequence[str]) -> RowChain:
    """Read the blocks of a function that form a chain.

    Parameters
    ----------
    func : PrimFunc
    names : sequence of str
        Names of its blocks, or nothing for all of them.

    Raises
    ------
    ScheduleError
        If they form none.
    """
    found = {str(n.block.name_hint): (i, n) for i, n in _nests(func)}
    wanted = list(names) or list(found)
    for name in wanted:
        if name not in found:
            raise ScheduleError(
                f"{NAME} needs blocks that stand alone in loops of their own, not bound to threads "
                f"or vectorized, directly in their function; {name} does not."
            )
    nests = [nest for name, (_, nest) in found.items() if name in wanted]
    chain = _shape(nests)
    chain.places = [place for name, (place, _) in found.items() if name in wanted]
    blocks = [_read_block(chain, nest) for nest in nests]
    _check_buffers(blocks)
    chain.outputs = _outputs(func, chain, blocks)
    _check_between(func, chain, blocks)
    known: list[RowStore] = []
    available: dict[int, int] = {}
    for block in blocks:
        named = _with_names(chain, block, known)
        level = max((available[i] for i, s in enumerate(known) if _asks(named, s)), default=0)
        chain.blocks.append(replace(named, level=level))
        for store in named.stores:
            available[len(known)] = level + (named.kind == "sum")
            known.append(store)
    return chain


def _asks(block: RowBlock, store: RowStore) -> bool:
    return any(uses(own.value, store.name) for own in block.stores)


def _nests(func: tirx.PrimFunc) -> list[tuple[int, Any]]:
    """Blocks that stand alone in plain loops, with the statement's place."""
    found = []
    for place, stmt in enumerate(top_statements(func)):
        while isinstance(stmt, tirx.For) and stmt.kind != tirx.ForKind.THREAD_BINDING:
            if stmt.kind == tirx.ForKind.VECTORIZED:
                break
            stmt = stmt.body
        if isinstance(stmt, s_tir.SBlockRealize) and stmt.block.iter_vars:
            found.append((place, stmt))
    return found


def _axes(block: Any, kind: int) -> list[Any]:
    """Axes of a kind that have more than one iteration."""
    return [a for a in block.iter_vars if int(a.iter_type) == kind and not _is_one(a)]


def _is_one(axis: Any) -> bool:
    return isinstance(axis.dom.extent, tirx.IntImm) and int(axis.dom.extent) == 1


def _shape(nests: Sequence[Any]) -> RowChain:
    """Take rows and columns from the first reduction."""
    for nest in nests:
        if any(int(a.iter_type) == tirx.IterVar.CommReduce for a in nest.block.iter_vars):
            break
    else:
        listed = ", ".join(str(nest.block.name_hint) for nest in nests)
        raise ScheduleError(f"{NAME} needs a reduction along the rows; {listed} reduce nothing.")
    kinds = tirx.IterVar.DataPar, tirx.IterVar.CommReduce
    rows, columns = (_axes(nest.block, kind) for kind in kinds)
    extents = [axis.dom.extent for axis in columns]
    if not all(isinstance(n, tirx.IntImm) for n in extents):
        raise ScheduleError(
            f"{NAME} needs rows of a known length; those of {nest.block.name_hint} have "
            f"{' x '.join(map(str, extents))} elements."
        )
    return RowChain(
        [axis.dom.extent for axis in rows],
        [int(n) for n in extents],
        [tirx.Var(f"row{i}", axis.var.ty) for i, axis in enumerate(rows)],
        [tirx.Var(f"column{i}", axis.var.ty) for i, axis in enumerate(columns)],
        nest.block.iter_vars[0].var.ty,
    )


def _read_block(chain: RowChain, nest: Any) -> RowBlock:
    """Read a block over the names of the chain's iterators."""
    block, name = nest.block, str(nest.block.name_hint)
    if not tvm_ffi.structural_equal(nest.predicate, tirx.const(True, "bool")):
        raise ScheduleError(
            f"Block {name} runs only where {nest.predicate} holds; {NAME} needs all of its rows."
        )
    data, sums = (_axes(block, k) for k in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce))
    ones = [axis for axis in block.iter_vars if _is_one(axis)]
    if len(data) + len(sums) + len(ones) != len(block.iter_vars):
        raise ScheduleError(f"An axis of block {name} keeps its order; {NAME} takes none of these.")
    own = chain.row_vars + chain.column_vars
    if any(int(axis.iter_type) == tirx.IterVar.CommReduce for axis in block.iter_vars):
        kind, axes = "sum", [*data, *sums]
    elif chain.columns and len(data) == len(own):
        kind, axes = "elements", data
    else:
        kind, axes, own = "row", data, chain.row_vars
    _check_extents(chain, name, kind, axes, sums)
    values = dict(zip((axis.var for axis in axes), own, strict=True))
    values |= {axis.var: axis.dom.min for axis in ones}
    stores = _stores(name, block.body, values)
    if kind == "row" or kind == "elements":
        return RowBlock(name, kind, stores)
    starts = _stores(name, block.init, values) if block.init is not None else ()
    reducer, parts = read_reducer(name, stores, starts)
    stores = tuple(replace(s, value=part) for s, part in zip(stores, parts, strict=True))
    return RowBlock(name, kind, stores, reducer)


def _check_extents(chain: RowChain, name: str, kind: str, axes: Any, sums: Any) -> None:
    wanted = [*chain.rows, *([] if kind == "row" else chain.columns)]
    has = [axis.dom.extent for axis in axes]
    alike = len(has) == len(wanted) and all(
        int(a) == int(b) if isinstance(a, tirx.IntImm) and isinstance(b, int | tirx.IntImm)
        else tvm_ffi.structural_equal(a, b)
        for a, b in zip(has, wanted, strict=True)
    )  # fmt: skip
    if alike and (kind != "sum" or len(sums) == len(chain.columns)):
        return
    rows = " x ".join(map(str, chain.rows)) or "1"
    length = " x ".join(map(str, chain.columns))
    raise ScheduleError(
        f"{NAME} needs blocks over the same rows, here {rows} of {length} elements; block {name} "
        f"goes over {' x '.join(map(str, has)) or '1'}."
    )


def _stores(name: str, body: Any, values: dict[Any, Any]) -> tuple[RowStore, ...]:
    """What a body stores, with its ``let`` values in the place of their names."""
    values, found = dict(values), []
    analyzer = tvm.sym.Analyzer()
    for stmt in statements_of(body):
        if isinstance(stmt, tirx.Bind):
            values[stmt.var] = substitute(stmt.value, values)
        elif isinstance(stmt, tirx.BufferStore):
            late = [s for s in found if any(is_load_of(x, s.buffer) for x in loads_in(stmt.value))]
            if late:
                raise ScheduleError(
                    f"Block {name} reads {late[0].buffer.name} after it stores it; {NAME} needs "
                    "values that are computed before."
                )
            at = tuple(analyzer.simplify(substitute(i, values)) for i in stmt.indices)
            named = tirx.Var(str(stmt.buffer.name), stmt.buffer.dtype)
            found.append(RowStore(named, stmt.buffer, at, substitute(stmt.value, values)))
        else:
            raise ScheduleError(
                f"Block {name} is opaque; {NAME} takes blocks of stores and let statements."
            )
    return tuple(found)


def _check_buffers(blocks: Sequence[RowBlock]) -> None:
    """Refuse what is computed in place or by two blocks."""
    written: list[tuple[str, Any]] = []
    for block in blocks:
        for store in block.stores:
            twice = [label for label, buffer in written if buffer.same_as(store.buffer)]
            if twice:
                raise ScheduleError(
                    f"{NAME} needs a block for each buffer; {twice[0]} and {block.label} both "
                    f"write {store.buffer.name}."
                )
            written.append((block.label, store.buffer))
    later = list(written)
    for block in blocks:
        for load in (load for store in block.stores for load in loads_in(store.value)):
            label = next((n for n, b in later if b.same_as(load.source)), None)
            if label is not None:
                raise ScheduleError(
                    f"Block {block.label} reads {load.source.name} before {label} writes it; "
                    f"{NAME} needs an output of its own."
                )
        later = [pair for pair in later if pair[0] != block.label]


def _outputs(func: tirx.PrimFunc, chain: RowChain, blocks: Sequence[RowBlock]) -> list[Any]:
    """Buffers of the chain that the caller has, or that others read."""
    inner = list(func.body.block.alloc_buffers)
    rest = [s for i, s in enumerate(top_statements(func)) if i not in chain.places]
    read = [var for stmt in rest for var in variables(stmt)]
    return [
        store.buffer
        for block in blocks
        for store in block.stores
        if not any(store.buffer.same_as(b) for b in inner)
        or any(store.buffer.same_as(b) for b in read)
    ]


def _check_between(func: tirx.PrimFunc, chain: RowChain, blocks: Sequence[RowBlock]) -> None:
    """Refuse others' statements between the chain's that touch what the chain writes, or reads."""
    first, last = min(chain.places), max(chain.places)
    ours = [store.buffer for block in blocks for store in block.stores]
    reads = [x.source for b in blocks for s in b.stores for x in loads_in(s.value)]
    for place, stmt in enumerate(top_statements(func)):
        if not first < place < last or place in chain.places:
            continue
        stored = _stored_in(stmt)
        touched = [v for v in variables(stmt) if any(v.same_as(b) for b in ours)]
        touched += [v for v in stored if any(v.same_as(b) for b in reads)]
        if touched:
            raise ScheduleError(
                f"{NAME} puts {blocks[0].label} to {blocks[-1].label} into one kernel, but a block "
                f"that is not among them touches {touched[0].name} in between."
            )


def _stored_in(stmt: Any) -> list[Any]:
    stored: list[Any] = []
    tvm_ffi.structural_walk(stmt, [(tirx.BufferStore, lambda store: stored.append(store.buffer))])
    return stored


def _with_names(chain: RowChain, block: RowBlock, known: Sequence[RowStore]) -> RowBlock:
    """Put names in the place of loads: of what the chain computed, and of what threads keep."""

    def load(node: Any, mutator: Any) -> Any:
        for store in known:
            if node.source.same_as(store.buffer):
                if not are_equal([_plain(i) for i in node.indices], store.indices):
                    raise ScheduleError(
                        f"Block {block.label} reads {node.source.name} at "
                        f"[{', '.join(map(str, node.indices))}], but threads have only what they "
                        f"computed at [{', '.join(map(str, store.indices))}]."
                    )
                return store.name
        return _name_of(chain, node) if block.kind != "row" else mutator.default_mutate(node)

    rules = [(tvm.ir.TensorLoad, load)]
    named = (
        replace(
            s, value=tvm_ffi.structural_mutate(s.value, rules) if loads_in(s.value) else s.value
        )
        for s in block.stores
    )
    return replace(block, stores=tuple(named))


def _plain(index: Any) -> Any:
    return tvm.sym.Analyzer().simplify(index)


def _name_of(chain: RowChain, node: Any) -> Any:
    """The name of a load that may go ahead of its use, or the load itself."""
    at = tuple(_plain(index) for index in node.indices)
    if any(loads_in(index) for index in at) or not is_inside(chain, node.source, at):
        return node
    if not any(uses(index, var) for index in at for var in chain.column_vars):
        return node
    for known in chain.loads:
        if known.buffer.same_as(node.source) and are_equal(known.indices, at):
            return known.name
    by_row = any(uses(index, var) for index in at for var in chain.row_vars)
    name = tirx.Var(f"{node.source.name}_{len(chain.loads)}", node.source.dtype)
    chain.loads.append(RowLoad(name, node.source, at, by_row))
    return name


def is_inside(chain: RowChain, buffer: Any, indices: Sequence[Any]) -> bool:
    """Whether an element is in its buffer for every row and column."""
    analyzer = tvm.sym.Analyzer()
    extents = [*chain.rows, *chain.columns]
    for var, extent in zip([*chain.row_vars, *chain.column_vars], extents, strict=True):
        analyzer.bind(var, tvm.ir.Range.from_min_extent(0, extent))
    return all(
        analyzer.can_prove(index >= 0) and analyzer.can_prove(index < extent)
        for index, extent in zip(indices, buffer.shape, strict=True)
    )
