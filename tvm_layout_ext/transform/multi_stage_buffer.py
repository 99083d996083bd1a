"""Turn a requested number of buffer versions into a software pipeline of the enclosing loop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .. import decisions
from ..errors import ScheduleError
from .mark_annotated import MARK
from .rebuild import block_with, loop_with, realize_with

__all__ = ["NUM_STAGES", "InjectMultiStageBuffer"]

#: Block annotation: how many versions the buffer that the block writes shall have.
NUM_STAGES = "layout_ext.num_stages"
_NAME = "InjectMultiStageBuffer"


@dataclass(frozen=True)
class _Part:
    """One statement of a loop body: the buffers it touches, and the versions asked of it."""

    stmt: Any
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    requested: int | None
    block: str

    @property
    def is_producer(self) -> bool:
        return self.requested is not None


def _blocks(stmt: Any) -> list[SBlock]:
    found: list[SBlock] = []
    tvm_ffi.structural_walk(stmt, [(SBlock, found.append)])
    return found


def _requested(block: SBlock) -> int | None:
    value = block.annotations.get(NUM_STAGES, None)
    return None if value is None else int(value)


def _part(stmt: Any) -> _Part:
    blocks = _blocks(stmt)
    asking = [b for b in blocks if _requested(b) is not None]
    # A copy inside a nested loop that also holds its consumer belongs to that loop, not to this.
    producer = asking[0] if asking and not _children_ask(stmt) else None
    return _Part(
        stmt,
        tuple(r.source for b in blocks for r in b.reads),
        tuple(w.source for b in blocks for w in b.writes),
        None if producer is None else _requested(producer),
        "" if producer is None else producer.name_hint,
    )


def _children_ask(stmt: Any) -> bool:
    """Whether a loop inside ``stmt`` holds both a producer and something that follows it."""
    inside = False

    def look(loop: Any) -> None:
        nonlocal inside
        parts = _statements(loop)
        if len(parts) > 1 and any(
            _requested(b) is not None for part in parts for b in _blocks(part)
        ):
            inside = True

    tvm_ffi.structural_walk(stmt, [(tirx.For, look)])
    return inside


def _statements(loop: Any) -> list[Any]:
    """Statements that TVM's InjectSoftwarePipeline will count in a loop's body."""
    body = loop.body
    if isinstance(body, SBlockRealize):
        body = body.block.body
    return list(_flat(body))


def _flat(stmt: Any) -> Iterator[Any]:
    if isinstance(stmt, tirx.SeqStmt):
        for child in stmt.seq:
            yield from _flat(child)
    else:
        yield stmt


def _is_serial(loop: Any) -> bool:
    return loop.kind in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED)


def _plan(loop: Any) -> tuple[list[int], list[int]] | None:
    """Stage and order of each statement of a loop, or None where nobody asks for versions."""
    parts = [_part(stmt) for stmt in _statements(loop)]
    producers = [p for p in parts if p.is_producer]
    if not producers or len(parts) == len(producers):
        return None
    loop_name = loop.loop_var.name
    stages = {p.requested for p in producers}
    if len(stages) > 1:
        asked = ", ".join(f"{p.block} {p.requested}" for p in producers)
        raise ScheduleError(
            f"Copies in loop {loop_name} ask for different numbers of buffer versions ({asked}); "
            "one loop has one depth."
        )
    depth = stages.pop()
    assert depth is not None
    _check_independent(parts, loop_name)
    for p in producers:
        decisions.note(_NAME, p.block, f"{depth} buffer versions over loop {loop_name}")
    if depth == 1:
        return None
    # Copies first: TVM counts the groups in flight wrongly for any other order.
    order = sorted(range(len(parts)), key=lambda i: (not parts[i].is_producer, i))
    return (
        [0 if p.is_producer else depth - 1 for p in parts],
        [order.index(i) for i in range(len(parts))],
    )


def _common(some: tuple[Any, ...], others: tuple[Any, ...]) -> str | None:
    """Name of a buffer that is in both; two copies of one tensor have one name and are two."""
    return next((a.name for a in some for b in others if a.same_as(b)), None)


def _check_independent(parts: list[_Part], loop_name: str) -> None:
    """Refuse a copy that could not run ahead of the rest of its iteration."""
    for i, producer in enumerate(parts):
        if not producer.is_producer:
            continue
        for j, other in enumerate(parts):
            if other.is_producer:
                continue
            if late := _common(producer.reads, other.writes):
                raise ScheduleError(
                    f"Block {producer.block} reads {late}, which the same iteration of loop "
                    f"{loop_name} writes, so it cannot run ahead of it; buffer only copies whose "
                    "sources the loop leaves alone."
                )
            if early := _common(producer.writes, other.writes):
                raise ScheduleError(
                    f"Buffer {early} is written by block {producer.block} and again in loop "
                    f"{loop_name}; only a buffer with one writer can have several versions."
                )
            if j < i and (before := _common(producer.writes, other.reads)):
                raise ScheduleError(
                    f"Loop {loop_name} reads {before} before block {producer.block} fills it; "
                    "the copy must come first to have several versions."
                )


def _counted_once(body: Any) -> Any:
    """A loop body in which no block of several statements is a statement of its own.

    InjectSoftwarePipeline counts the statements of such a block one by one; tensor intrinsics make
    such blocks. Inside one more block they count once.
    """
    if isinstance(body, tirx.SeqStmt):
        return tirx.SeqStmt([_wrapped(child) for child in _flat(body)])
    if isinstance(body, SBlockRealize) and isinstance(body.block.body, tirx.SeqStmt):
        return _with_body(body, _counted_once(body.block.body))
    return body


def _wrapped(stmt: Any) -> Any:
    if not isinstance(stmt, SBlockRealize) or not isinstance(stmt.block.body, tirx.SeqStmt):
        return stmt
    block = stmt.block
    inner = SBlock([], block.reads, block.writes, block.name_hint, block.body)
    return _with_body(stmt, SBlockRealize([], True, inner))


def _with_body(realize: Any, body: Any) -> Any:
    return realize_with(realize, block_with(realize.block, body=body))


def _annotate(loop: Any) -> Any:
    if not _is_serial(loop):
        return loop
    plan = _plan(loop)
    if plan is None:
        return loop
    stage, order = plan
    annotations = {"software_pipeline_stage": stage, "software_pipeline_order": order}
    return loop_with(
        loop, body=_counted_once(loop.body), annotations={**loop.annotations, **annotations}
    )


def _strip(block: SBlock) -> SBlock:
    if NUM_STAGES not in block.annotations:
        return block
    kept = {k: v for k, v in block.annotations.items() if k != NUM_STAGES}
    return block_with(block, annotations=kept)


def _check_housed(body: Any) -> None:
    """Refuse blocks that ask for versions and are in no serial loop together with a consumer."""
    asking = [b for b in _blocks(body) if (_requested(b) or 1) > 1]
    housed: list[Any] = []

    def look(loop: Any) -> None:
        if _is_serial(loop):
            parts = [_part(stmt) for stmt in _statements(loop)]
            if any(not p.is_producer for p in parts):
                housed.extend(b for p in parts if p.is_producer for b in p.writes)

    tvm_ffi.structural_walk(body, [(tirx.For, look)])
    for block in asking:
        if not any(w.source.same_as(buffer) for w in block.writes for buffer in housed):
            raise ScheduleError(
                f"Block {block.name_hint} asks for several buffer versions, but no serial loop "
                "holds both it and a block that reads its buffer; compute it at a serial loop of "
                "its consumer."
            )


def _check_not_nested(body: Any) -> None:
    """Refuse a versioned loop inside another, which TVM's InjectSoftwarePipeline cannot count."""

    def look(loop: Any) -> None:
        if not _is_planned(loop):
            return
        inside: list[Any] = []
        tvm_ffi.structural_walk(loop.body, [(tirx.For, inside.append)])
        for other in filter(_is_planned, inside):
            raise ScheduleError(
                f"Loop {other.loop_var.name} lies inside loop {loop.loop_var.name} and both hold "
                "copies with several buffer versions; only one of them can."
            )

    tvm_ffi.structural_walk(body, [(tirx.For, look)])


def _check_extents(body: Any) -> None:
    """Refuse a versioned loop whose length another loop decides: TVM's epilogue then races."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(body, [(tirx.For, loops.append)])
    for loop in filter(_is_planned, loops):
        used = tirx.analysis.undefined_vars(loop.extent)
        outer = [o.loop_var for o in loops if any(o.loop_var.same_as(var) for var in used)]
        if outer:
            raise ScheduleError(
                f"Loop {loop.loop_var.name} holds copies with several buffer versions and runs "
                f"{loop.extent} times, which depends on loop {outer[0].name}; its extent must be "
                "the same for the whole kernel."
            )


def _is_planned(loop: Any) -> bool:
    return "software_pipeline_stage" in loop.annotations


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.InjectMultiStageBuffer")
def _inject_multi_stage_buffer(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    if func.attrs.get(MARK, None) is None:
        return func
    _check_housed(func.body)
    body = tvm_ffi.structural_map(func.body, [(tirx.For, _annotate)], order="post")
    _check_not_nested(body)
    _check_extents(body)
    return func.with_body(tvm_ffi.structural_map(body, [(SBlock, _strip)], order="post"))


def InjectMultiStageBuffer() -> Any:
    """Create the pass that gives a copied buffer the versions its schedule asked for.

    A block annotated ``layout_ext.num_stages`` = N writes a buffer of N versions: while one is
    computed from, the next N - 1 are being filled. The pass works out the stages and the order from
    the statements that it finds in the loop, and hands them to TVM's InjectSoftwarePipeline, which
    emits prologue, steady state and epilogue.

    Does not handle, and refuses by name:

    * a copy in no serial loop together with its consumer,
    * a copy that reads what the same loop writes, or a buffer with a second writer,
    * two copies of one loop that ask for different numbers of versions,
    * a loop with versioned copies inside another, or whose extent depends on another.

    Raises
    ------
    ScheduleError
        In the cases above.
    """
    return _inject_multi_stage_buffer
