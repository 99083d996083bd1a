"""How each buffer access of a block walks memory as the loops around the block run.

An access is reduced to one number, the offset of the element from the base pointer, as a function
of the loops. What matters of it is how far one step of each loop moves it: 1 along a contiguous
loop, 0 where the loop only repeats the access, the row length along rows. Offsets with anything but
sums in them (quotients, loads, xor) keep their regular loops and are irregular in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import IterVar

from ..errors import ScheduleError
from ..gpu.hardware import MAX_ACCESS_BYTES
from ..ir.block_bindings import holder_of, realize_of
from ..ir.block_body import BodyAccess, binds_truth, choices_of_values, read_body, without_lets
from ..ir.conditions import analyzer_of, compares_values
from ..ir.pointers import strides_of
from ..ir.queries import depends_on, is_among, loads_in, nodes_in, substitute
from ..ir.walk import LoopVar, loop_kind
from .assumptions import NO_ASSUMPTIONS, Assumptions, Prover, read_assumptions
from .axis_info.values import power_of_two_in

#: TVM 0.27 writes no longer vectors of truth values for CUDA than these.
_TRUTH_LANES = 4
#: Nor longer ones of FP8 that it casts.
_FP8_LANES = 4
#: Bytes of the longest vector that it has a CUDA type for, as for 8 of ``float32``.
_VECTOR_BYTES = 32


@dataclass(frozen=True)
class Loop(LoopVar):
    """A loop around a block, counted from 0."""

    is_reduction: bool  #: Some reduction iterator of the block depends on it
    is_perfect: bool  #: Nothing but the block is in it
    is_data: bool  #: Some iterator that is none of a reduction depends on it


@dataclass(frozen=True)
class Access:
    """One load, store or atomic of a block."""

    buffer: Any  #: What is accessed
    kind: str  #: ``load``, ``store`` or ``atomic``
    offset: Any  #: Elements from the base pointer, in the variables of the loops
    #: By how much one step of each loop moves the offset; None where that is not the same
    #: everywhere.
    steps: tuple[Any, ...]
    assumptions: Assumptions = NO_ASSUMPTIONS  #: What the function promises about its arguments
    most_lanes: int = MAX_ACCESS_BYTES  #: Elements of the longest vector that can be compiled
    indices: tuple[Any, ...] = ()  #: One for each dim of the buffer, in the variables of the loops
    #: Of the ``if`` statements around it, each of which must hold, in the variables of the loops.
    conditions: tuple[Any, ...] = ()
    own_conditions: tuple[Any, ...] = ()  #: The same in the block's iterators
    own_indices: tuple[Any, ...] = ()  #: The indices in these
    axes: tuple[Any, ...] = ()  #: These iterators

    @cached_property
    def name(self) -> str:
        """Name of the buffer."""
        return str(self.buffer.name)

    @cached_property
    def scope(self) -> str:
        """Memory of the buffer: ``global``, ``shared``, ``local``, ..."""
        return str(self.buffer.scope())

    @cached_property
    def bytes(self) -> int:
        """Bytes of an element."""
        return element_bytes(self.buffer)

    @cached_property
    def alignment(self) -> int:
        """Power of two, in bytes, that divides the base address."""
        declared = power_of_two_in(int(self.buffer.ty.data_alignment) or self.bytes)
        return max(declared, self.assumptions.alignment(self.buffer))

    def is_affine(self) -> bool:
        """Whether the offset is regular in every loop."""
        return all(step is not None for step in self.steps)

    def moves_alike(self, other: Access) -> bool:
        """Whether two accesses of a buffer have equal steps, so that they differ by a shift."""
        return len(self.steps) == len(other.steps) and all(
            _same(a, b) for a, b in zip(self.steps, other.steps, strict=True)
        )

    @property
    def has_vectors(self) -> bool:
        """Whether CUDA code has vectors of the type: of bool TVM 0.27 writes none aright."""
        return str(self.buffer.dtype) != "bool"

    def vector(self, run: Sequence[Loop], most_bytes: int = MAX_ACCESS_BYTES) -> int:
        """How many neighbours along contiguous loops, outermost first, one instruction may take."""
        if not self.has_vectors:
            return 1
        width = max(1, min(self.most_lanes, most_bytes // self.bytes))
        while width > 1 and not self._is_aligned(run, width):
            width //= 2
        return width

    def _is_aligned(self, run: Sequence[Loop], width: int) -> bool:
        if self.alignment % (width * self.bytes):
            return False
        start = {loop.var: loop.var * 0 for loop in run[:-1]}
        start[run[-1].var] = run[-1].var * width
        first = substitute(self.offset, start)
        return Prover(self.assumptions.conditions).is_multiple(first, width)


@dataclass(frozen=True)
class Nest:
    """A block with the loops around it and all its accesses."""

    block: Any  #: The block
    loops: tuple[Loop, ...]  #: Outermost first
    #: Loads, stores and atomics of the body in the order of the program.
    accesses: tuple[Access, ...]
    predicate: Any  #: Where the block runs
    assumptions: Assumptions = NO_ASSUMPTIONS  #: What the function promises about its arguments
    #: Conditions of ``if_then_else`` beside ``if`` and ``let`` statements.
    choices: tuple[Any, ...] = ()

    @property
    def is_guarded(self) -> bool:
        """Whether the block runs only where a condition holds, as a split with a rest leaves it."""
        guard = self.predicate
        return not (isinstance(guard, tirx.IntImm) and bool(guard.value))

    @property
    def conditions(self) -> tuple[Any, ...]:
        """Conditions of all ``if`` statements around accesses, each once."""
        found: list[Any] = []
        for access in self.accesses:
            found += [
                condition
                for condition in access.conditions
                if not any(tvm_ffi.structural_equal(condition, other) for other in found)
            ]
        return tuple(found)

    def position(self, loop: Loop) -> int:
        """Where a loop stands among those of the nest, the outermost 0."""
        return next(at for at, own in enumerate(self.loops) if own is loop)

    def step(self, access: Access, loop: Loop) -> Any:
        """By how many elements one step of a loop moves an access; None where that differs."""
        return access.steps[self.position(loop)]

    def groups(self, access: Access, loop: Loop) -> tuple[int, int]:
        """Aligned powers of two of neighbours along a loop that an access walks, or stays at.

        They are as long as a vector of bytes at most.
        """
        prover = Prover(self.assumptions.conditions)
        for one in self.loops:
            prover.analyzer.bind(one.var, tvm.ir.Range.from_min_extent(0, one.extent))
        found = {1: 1, 0: 1}
        width = 2
        while width <= MAX_ACCESS_BYTES:
            group, lane = (tirx.Var(name, loop.var.ty) for name in ("group", "lane"))
            groups = tirx.floordiv(loop.extent + (width - 1), width)
            prover.analyzer.bind(group, tvm.ir.Range.from_min_extent(0, groups))
            prover.analyzer.bind(lane, tvm.ir.Range.from_min_extent(0, width))
            at = substitute(access.offset, {loop.var: group * width + lane})
            moved = prover.at_first(at, lane, width) - substitute(at, {lane: lane * 0})
            for step in found:
                if prover.analyzer.can_prove_equal(moved, lane * step):
                    found[step] = width
            width *= 2
        return found[1], found[0]

    def of_scope(self, scope: str) -> list[Access]:
        """Accesses of one kind of memory."""
        return [access for access in self.accesses if access.scope == scope]

    def global_loads(self) -> list[Access]:
        """Loads from global memory."""
        return [access for access in self.of_scope("global") if access.kind == "load"]


def element_bytes(buffer: Any) -> int:
    """Bytes of an element; sub-byte types count as one."""
    return _type_bytes(str(buffer.dtype))


@cache
def _type_bytes(dtype: str) -> int:
    return max(1, int(tvm.DataType(dtype).itemsize))


def read_nest(sch: Any, block: Any) -> Nest:
    """Read a block of a schedule, with its accesses in terms of the loops around it."""
    stmt = sch.get(block)
    refs = [sch.get(loop) for loop in sch.get_loops(block)]
    realize = realize_of(sch, block)
    pairs = list(zip(stmt.iter_vars, realize.iter_values, strict=True))
    loops = tuple(_loop(ref, pairs) for ref in refs)
    values = {it.var: value for it, value in pairs}
    held = holder_of(sch.mod, stmt)
    assumptions = NO_ASSUMPTIONS if held is None else read_assumptions(held[1])
    facts: dict[str, Any] = {
        "assumptions": assumptions,
        "most_lanes": _most_lanes(stmt),
        "axes": tuple(stmt.iter_vars),
    }
    accesses = tuple(
        replace(_access(reference, values, loops), **facts) for reference in _references(stmt)
    )
    choices = tuple(substitute(one, values) for one in choices_of_values(stmt.body))
    return Nest(stmt, loops, accesses, realize.predicate, assumptions, choices)


def _references(block: Any) -> list[BodyAccess]:
    """List what a block accesses; a reduction reads each element once, however often named."""
    reduces = any(it.iter_type == IterVar.CommReduce for it in block.iter_vars)
    found: list[BodyAccess] = []
    for one in read_body(block.body):
        again = reduces and one.kind == "load"
        if not again or not any(one.is_like(other) for other in found):
            found.append(one)
    return found


def _most_lanes(block: Any) -> int:
    """Elements of the longest vector that TVM can write of a body, whatever its buffers are."""
    body = block.body
    if binds_truth(body):
        return 1
    reduces = any(it.iter_type == IterVar.CommReduce for it in block.iter_vars)
    # Reductions load vectors and combine them element by element.
    if compares_values(without_lets(body)) and not reduces:
        return _TRUTH_LANES
    casts = nodes_in(body, tirx.Cast)
    types = [str(t) for cast in casts if loads_in(cast.value) for t in (cast.ty, cast.value.ty)]
    if any(one.startswith("float8") for one in types):
        return _FP8_LANES
    return min(MAX_ACCESS_BYTES, _VECTOR_BYTES // max(map(_type_bytes, types), default=1))


def _loop(ref: Any, pairs: Sequence[tuple[Any, Any]]) -> Loop:
    own = [it for it, value in pairs if depends_on(value, ref.loop_var)]
    sums = [it for it in own if it.iter_type == IterVar.CommReduce]
    is_data = len(sums) < len(own)
    return Loop(ref.loop_var, ref.extent, loop_kind(ref), bool(sums), _holds_one(ref), is_data)


def _holds_one(ref: Any) -> bool:
    body = ref.body
    while isinstance(body, tirx.For):
        body = body.body
    return isinstance(body, s_tir.SBlockRealize)


def _access(reference: BodyAccess, values: dict[Any, Any], loops: Sequence[Loop]) -> Access:
    buffer, kind = reference.buffer, reference.kind
    at = tuple(substitute(index, values) for index in reference.indices)
    # A loop of one iteration keeps its step: it goes on where the next one ends.
    analyzer = analyzer_of((one.var, one.extent) for one in loops if (one.size or 0) > 1)
    offset = analyzer.simplify(_flat(buffer, at))
    steps = steps_of(offset, [loop.var for loop in loops])
    holds = tuple(substitute(condition, values) for condition in reference.conditions)
    own: dict[str, Any] = {
        "own_conditions": reference.conditions,
        "own_indices": tuple(reference.indices),
    }
    return Access(buffer, kind, offset, steps, indices=at, conditions=holds, **own)


def _flat(buffer: Any, indices: Sequence[Any]) -> Any:
    """Offset of an element; an element offset of unknown value is a multiple of its factor."""
    strides = strides_of(buffer)
    offset = buffer.ty.elem_offset
    factor = int(buffer.ty.offset_factor)
    if not isinstance(offset, int | tirx.IntImm) and factor > 1:
        offset = tirx.Var("aligned_offset", offset.ty) * factor
    if len(strides) != len(indices):
        raise ScheduleError(
            f"TVM gives {buffer.name}, of {len(indices)} dims, the {len(strides)} strides of the "
            "buffer that it stands for"
        )
    for index, stride in zip(indices, strides, strict=True):
        offset = offset + index * stride
    return offset


def steps_of(value: Any, variables: list[Any]) -> tuple[Any, ...]:
    """By how much one step of each loop moves a value, None where that differs."""
    analyzer = tvm.sym.Analyzer()
    used = tirx.analysis.undefined_vars(value)
    moving = [is_among(var, used) for var in variables]
    # One answer for all loops that do not occur in the value, of which there are many.
    still = None if all(moving) else _step(value, value, variables, analyzer)
    return tuple(
        _step(substitute(value, {var: var + 1}), value, variables, analyzer) if moves else still
        for var, moves in zip(variables, moving, strict=True)
    )


def _step(moved: Any, offset: Any, variables: list[Any], analyzer: Any) -> Any:
    """Difference of the offset over one step of a loop, if it is the same everywhere."""
    step = analyzer.simplify(moved - offset)
    if isinstance(step, tirx.IntImm):
        return int(step)
    if loads_in(step):
        return None
    used = tirx.analysis.undefined_vars(step)
    return None if any(is_among(var, variables) for var in used) else step


def _same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return False
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(tvm.sym.Analyzer().can_prove(a == b))
