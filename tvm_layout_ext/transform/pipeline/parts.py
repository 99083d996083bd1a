"""The statements of a loop body, and what each of them reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...errors import ScheduleError
from ...ir import ops
from ...ir.annotations import ASYNC_COPY, NUM_STAGES
from ...ir.queries import blocks_in, distinct, is_among, is_call_of, is_global, loads_in, nodes_in
from ...ir.walk import statements_of

#: Annotations of a block that asks for versions.
REQUEST = (NUM_STAGES, ASYNC_COPY)


@dataclass(frozen=True)
class Region:
    """Part of a buffer that is touched: first and last index of each dim, None if unknown."""

    buffer: Any
    bounds: tuple[tuple[Any, Any], ...] | None


@dataclass(frozen=True)
class Part:
    """One statement of a loop body."""

    stmt: Any
    name: str  #: Of its first block; empty where it has none
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]
    #: Versions asked for the buffer that it fills; None if it is no versioned copy.
    num_stages: int | None
    async_copy: int | None  #: Value of annotation ``layout_ext.async_copy``
    threads: tuple[Any, ...] = ()  #: Thread axes around the loop

    @property
    def place(self) -> str:
        """What to call it in a sentence."""
        return f"block {self.name}" if self.name else "a statement outside of blocks"

    def feeds(self, other: Part) -> bool:
        """Whether the other statement reads a buffer that this one writes."""
        return any(other.reads_of(written.buffer) for written in self.writes)

    def reads_of(self, buffer: Any) -> list[Region]:
        """Regions of a buffer that the statement reads."""
        return [region for region in self.reads if region.buffer.same_as(buffer)]

    def writes_of(self, buffer: Any) -> list[Region]:
        """Regions of a buffer that the statement writes."""
        return [region for region in self.writes if region.buffer.same_as(buffer)]


def requested(block: SBlock) -> int | None:
    """Number of versions that a block asks for."""
    value = block.annotations.get(NUM_STAGES, None)
    return None if value is None else int(value)


def parts_of(loop: Any, threads: dict[Any, Any]) -> list[Part]:
    """Take the body of a loop apart, given the ranges of the thread axes around it."""
    body = loop.body
    if isinstance(body, SBlockRealize):
        body = body.block.body
    return [_part(stmt, threads) for stmt in statements_of(body)]


def allocated(loop: Any) -> list[Any]:
    """Buffers that the body of a loop allocates."""
    return list(loop.body.block.alloc_buffers) if isinstance(loop.body, SBlockRealize) else []


def check_own(copy: Part, parts: Sequence[Part], loop: Any) -> None:
    """Refuse versions of a buffer that others write, too, or that is used outside the loop."""
    name = loop.loop_var.name
    for written in copy.writes:
        buffer = written.buffer
        if any(part is not copy and part.writes_of(buffer) for part in parts):
            raise ScheduleError(
                f"Buffer {buffer.name} is written by block {copy.name} and again in loop {name}; "
                "only a buffer with one writer can have several versions."
            )
        if not is_among(buffer, allocated(loop)):
            raise ScheduleError(
                f"Buffer {buffer.name}, which block {copy.name} fills, is used outside loop "
                f"{name}, so it cannot have several versions."
            )


def _part(stmt: Any, threads: dict[Any, Any]) -> Part:
    blocks = blocks_in(stmt)
    asking = next((b for b in blocks if requested(b) is not None), None)
    inner = dict(threads)
    for loop in nodes_in(stmt, tirx.For):
        inner[loop.loop_var] = tvm.ir.Range.from_min_extent(loop.min, loop.extent)
    named = asking if asking is not None else next((b for b in blocks if b.name_hint), None)
    reads = tuple(_region(r, inner) for b in blocks for r in b.reads)
    writes = tuple(_region(w, inner) for b in blocks for w in b.writes)
    return Part(
        stmt,
        named.name_hint if named is not None else "",
        reads + _undeclared(stmt, tvm.ir.TensorLoad, reads, inner),
        writes + _undeclared(stmt, tirx.BufferStore, writes, inner) + _by_address(stmt),
        None if asking is None else requested(asking),
        None if asking is None else asking.annotations.get(ASYNC_COPY, None),
        tuple(threads),
    )


def _undeclared(
    stmt: Any, kind: Any, declared: tuple[Region, ...], ranges: dict[Any, Any]
) -> tuple[Region, ...]:
    """What a statement loads or stores of buffers that no block of it declares."""
    known = [region.buffer for region in declared]
    bound = [bind.var for bind in nodes_in(stmt, tirx.Bind)]
    found: list[Region] = []
    for node in nodes_in(stmt, kind):
        buffer = node.source if isinstance(node, tvm.ir.TensorLoad) else node.buffer
        if not is_among(buffer, known):
            bounds = [_ends(index, ranges, bound) for index in node.indices]
            whole = tuple(ends for ends in bounds if ends is not None)
            found.append(Region(buffer, whole if len(whole) == len(bounds) else None))
    return tuple(found)


def _ends(index: Any, ranges: dict[Any, Any], bound: list[Any]) -> tuple[Any, Any] | None:
    """First and last value of an index; None where it is loaded, or of a variable bound inside."""
    variables = tirx.analysis.undefined_vars(index)
    if loads_in(index) or any(is_among(var, bound) for var in variables):
        return None
    analyzer = tvm.sym.Analyzer()
    low = _bound(analyzer, index, ranges, upper=False)
    high = _bound(analyzer, index, ranges, upper=True)
    return None if low is None or high is None else (low, high)


def _by_address(stmt: Any) -> tuple[Region, ...]:
    """Global buffers that calls may write through an address, as ``atomicAdd``: no region tells."""
    calls = nodes_in(stmt, tvm.ir.Call)
    pointed = [one.args[0] for one in calls if is_call_of(one, ops.ADDRESS_OF)]
    # Others are addresses of tensor maps.
    elements = [one.source for one in pointed if isinstance(one, tvm.ir.TensorLoad)]
    pointers = [one.args[0] for one in calls if is_call_of(one, ops.BUFFER_DATA)]
    buffers = distinct(one for one in (*elements, *pointers) if is_global(one))
    return tuple(Region(buffer, None) for buffer in buffers)


def _region(region: Any, ranges: dict[Any, Any]) -> Region:
    """Widen a region of a block to all threads and iterations inside the loop."""
    analyzer = tvm.sym.Analyzer()
    bounds = []
    for extent in region.region:
        low = _bound(analyzer, extent.min, ranges, upper=False)
        high = _bound(analyzer, extent.min + extent.extent - 1, ranges, upper=True)
        if low is None or high is None:
            return Region(region.source, None)
        bounds.append((low, high))
    return Region(region.source, tuple(bounds))


def _bound(analyzer: Any, expr: Any, ranges: dict[Any, Any], *, upper: bool) -> Any | None:
    """One end of an expression over some ranges, as far as TVM's interval analysis knows."""
    expr = analyzer.simplify(tvm.runtime.convert(expr))
    used = {var: ranges[var] for var in tirx.analysis.undefined_vars(expr) if var in ranges}
    if not used:
        return expr
    domain = {var: tvm.sym.IntervalSet(r.min, r.min + r.extent - 1) for var, r in used.items()}
    found = analyzer.int_set(expr, domain)
    value = getattr(found, "max_value" if upper else "min_value", None)
    return value if isinstance(value, tvm.ir.Expr) and "inf" not in str(value) else None
