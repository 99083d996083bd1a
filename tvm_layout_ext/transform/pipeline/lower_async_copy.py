"""Turn copies from global to shared memory into ``cp.async``, ragged ones filled with zeros."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.script import tirx as T

from ... import decisions
from ...analysis.assumptions import Prover, read_assumptions
from ...errors import ScheduleError
from ...ir import ops
from ...ir.annotations import ASYNC_SCOPE
from ...ir.conditions import step_of
from ...ir.queries import depends_on, is_call_of, is_global, loads_in, nodes_in, substitute
from ..base import function_pass, mapped
from .copy_parts import ThreadCopy, UnfitError, read_copy

_NAME = "LowerAsyncCopy"
#: Bytes that one cp.async moves; only 16 may bypass L1 (PTX ISA, "cp.async": .cg needs 16).
_SIZES = {4: "ca", 8: "ca", 16: "cg"}

#: Bits of the numbers of elements that are counted.
_COUNT_BITS = 32


def _check(copy: ThreadCopy, prover: Any) -> None:
    store, load = copy.store.buffer, copy.load.source
    if not store.scope().startswith("shared") or not is_global(load):
        raise UnfitError(f"it copies from {load.scope() or 'global'} to {store.scope()}")
    if store.dtype != load.dtype:
        raise UnfitError(f"it casts {load.dtype} to {store.dtype}")
    if copy.bytes not in _SIZES:
        raise UnfitError(f"a thread copies {copy.bytes} bytes at a time, and cp.async 4, 8 or 16")
    for name, indices in ((store.name, copy.store.indices), (load.name, copy.load.indices)):
        (index,) = indices
        if not _runs_on(_at_first(index, copy, prover), copy):
            raise UnfitError(f"its elements do not lie side by side in {name}")
        if not prover.is_multiple(copy.first(index), copy.lanes):
            raise UnfitError(
                f"it is not known to start at a multiple of {copy.bytes} bytes in {name}"
            )


def _runs_on(index: Any, copy: ThreadCopy) -> bool:
    if copy.lane is None:
        return True
    step = substitute(index, {copy.lane: copy.lane + 1}) - index
    return bool(tvm.sym.Analyzer().can_prove_equal(step, 1))


def _at_first(index: Any, copy: ThreadCopy, prover: Any) -> Any:
    return index if copy.lane is None else prover.at_first(index, copy.lane, copy.lanes)


def _source_bytes(copy: ThreadCopy) -> Any | None:
    """Bytes to read, the rest being zeros; None where that is all of them, always."""
    if not copy.conditions:
        return None
    whole: list[Any] = []
    counts: list[Any] = []
    for condition in copy.conditions:
        count = _count(condition, copy)
        if count is not None and len(copy.conditions) > 1 and loads_in(condition):
            # All counts are computed, and this one may be out of range where another one fails.
            raise UnfitError(f"its condition {condition} is loaded under another one")
        (whole if count is None else counts).append(condition if count is None else count)
    size: Any = tirx.IntImm("int32", copy.bytes)
    if counts:
        fewest = reduce(tirx.min, [*counts, tirx.IntImm("int32", copy.lanes)])
        size = tirx.max(fewest, 0) * copy.element_bytes
    if whole:
        size = tirx.Select(reduce(tirx.And, whole), size, tirx.IntImm("int32", 0))
    return tirx.Cast("uint32", size)


def _count(condition: Any, copy: ThreadCopy) -> Any | None:
    """How many of the first lanes a condition holds for; None where it is the same for all."""
    if copy.lane is None or not depends_on(condition, copy.lane):
        return None
    if not isinstance(condition, tirx.LT | tirx.LE):
        raise UnfitError(f"its condition {condition} does not say how many elements are in range")
    left = condition.b - condition.a + (1 if isinstance(condition, tirx.LE) else 0)
    if step_of(left, copy.lane) != -1:
        raise UnfitError(f"its condition {condition} does not end at one element")
    left = copy.first(left)
    kind = str(left.ty)
    if tvm.DataType(kind).bits <= _COUNT_BITS:
        return tirx.Cast("int32", left)
    # Narrowed first, a bound of 2^31 and more would count as negative.
    none, all_of = tirx.const(0, kind), tirx.const(copy.lanes, kind)
    return tirx.Cast("int32", tirx.max(tirx.min(left, all_of), none))


def _instruction(copy: ThreadCopy) -> Any:
    size = _source_bytes(copy)
    (first,) = (copy.first(index) for index in copy.store.indices)
    # TVM's planning of shared memory looks past ``address_of``.
    target = copy.store.buffer.access_ptr("w", offset=first, extent=copy.lanes)
    source = T.address_of(_source(copy))
    name = f"cp.async.{_SIZES[copy.bytes]}.shared.global"
    rest = [] if size is None else [size]
    instruction = tirx.Evaluate(T.ptx[name](target, source, copy.bytes, *rest))
    if not copy.guards:
        return instruction
    return tirx.IfThenElse(reduce(tirx.And, copy.guards), instruction, None)


def _source(copy: ThreadCopy) -> Any:
    """First element to read; where nothing is read and the index is loaded itself, element 0."""
    (index,) = (copy.first(one) for one in copy.load.indices)
    if copy.conditions and loads_in(index):
        in_range = reduce(tirx.And, [copy.first(condition) for condition in copy.conditions])
        index = tirx.if_then_else(in_range, index, tirx.const(0, str(index.ty)))
    return tirx.BufferLoad(copy.load.source, [index])


class _Lowering:
    def __init__(self, prover: Any) -> None:
        self.prover = prover
        self.demanded: int | None = None
        self.any = False

    def scope(self, node: Any, mutator: Any) -> Any:
        if node.attr_key != ASYNC_SCOPE:
            return mutator.default_mutate(node)
        self.demanded = int(node.value)
        try:
            return mutator.default_mutate(node).body
        finally:
            self.demanded = None

    def loop(self, node: Any, mutator: Any) -> Any:
        """Visit a loop; a vector is one copy."""
        if self.demanded is None or node.kind != tirx.ForKind.VECTORIZED:
            return mutator.default_mutate(node)
        return self._lowered(node)

    def branch(self, node: Any, mutator: Any) -> Any:
        """Visit a condition, which may be a copy's own."""
        if self.demanded is None or not _guards_store(node):
            return mutator.default_mutate(node)
        return self._lowered(node)

    def store(self, node: Any, mutator: Any) -> Any:
        if self.demanded is None:
            return mutator.default_mutate(node)
        return self._lowered(node)

    def _lowered(self, stmt: Any) -> Any:
        try:
            copy = read_copy(stmt)
            conditions = [_at_first(one, copy, self.prover) for one in copy.conditions]
            copy = replace(copy, conditions=conditions)
            _check(copy, self.prover)
            lowered = _instruction(copy)
        except UnfitError as why:
            self._refuse(stmt, str(why))
            return stmt
        self.any = True
        decisions.note(
            _NAME, copy.store.buffer.name, f"asynchronous copies of {copy.bytes} bytes a thread"
        )
        return lowered

    def _refuse(self, stmt: Any, why: str) -> None:
        stores = nodes_in(stmt, tirx.BufferStore)
        name = str(stores[0].buffer.name) if stores else "a statement"
        if self.demanded:
            raise ScheduleError(f"The copy into {name} cannot be asynchronous: {why}.")
        decisions.note(_NAME, name, f"copied through registers: {why}", refused=True)


def _guards_store(branch: Any) -> bool:
    body = branch
    while isinstance(body, tirx.IfThenElse) and body.else_case is None:
        body = body.then_case
    return isinstance(body, tirx.BufferStore)


_GROUP_OPS = (ops.PTX_CP_ASYNC_COMMIT_GROUP, ops.PTX_CP_ASYNC_WAIT_GROUP)


def _without_groups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Drop commits and waits where no copy became asynchronous."""

    def drop(node: Any) -> Any:
        return tirx.Evaluate(0) if is_call_of(node.value, *_GROUP_OPS) else node

    return mapped(func, (tirx.Evaluate, drop))


@function_pass(asks=ASYNC_SCOPE)
def LowerAsyncCopy(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that makes copies asynchronous which a pipeline wants so.

    A vector (or one element) that is copied from global to shared memory becomes one ``cp.async``
    of 4, 8 or 16 bytes. Elements out of range are filled with zeros by the instruction's own source
    size, so that a ragged tail stays one instruction::

        # before                                          # after
        for v in T.vectorized(4):                         cp.async.cg [S + i * 4], [A + i * 4], 16,
            S[i * 4 + v] = (A[i * 4 + v]                      min(max(n - i * 4, 0), 4) * 4
                            if i * 4 + v < n else 0)

    Leaves as they are, with the reason in the report, or refuses where ``async_copy=True``: copies
    that cast or compute, that are not 4, 8 or 16 bytes wide or not known to be aligned, that fill
    with another value than 0, whose condition is no upper bound.
    """
    lowering = _Lowering(Prover(read_assumptions(func).conditions))
    rules = [
        (tirx.AttrStmt, lowering.scope),
        (tirx.For, lowering.loop),
        (tirx.IfThenElse, lowering.branch),
        (tirx.BufferStore, lowering.store),
    ]
    body = tvm_ffi.structural_mutate(func.body, rules)
    lowered = func.with_body(body)
    return lowered if lowering.any else _without_groups(lowered)
