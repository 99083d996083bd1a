"""Every access of a function's memory, with the loops and conditions around it.

Works before lowering, where indices have several dims and vectors are loops, and on final device
functions, where offsets are flat and vectors are ramps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx import IterVar

from ..ir import ops
from ..ir.annotations import TENSOR_CORE
from ..ir.conditions import choice_parts
from ..ir.evaluate import bind_lets, known_value
from ..ir.ops import CHOICE
from ..ir.pointers import POINTER_OPS, pointer_of, source_of
from ..ir.queries import is_among, is_global, op_name
from ..ir.walk import Context, LoopVar, own_parts, walk
from .nest import element_bytes


@dataclass(frozen=True)
class CopySource:
    """Global memory that an access copies from."""

    buffer: Any
    indices: tuple[Any, ...]  #: Of the element that goes to the access's own
    fills: bool = False  #: It is read under a condition; zeros or the like are stored elsewhere


@dataclass(frozen=True, eq=False)
class AccessSite:
    """One load, store or matrix instruction of a program."""

    buffer: Any
    kind: str  #: ``load``, ``store``, ``ldmatrix``, ``stmatrix`` or ``cp.async``
    indices: tuple[Any, ...]  #: Of the first element, one for each dim; the last may be a ramp
    bytes: int | None = None  #: What a lane touches from there; None for as much as the vector has
    context: Context = field(default_factory=Context)
    #: What a store or ``cp.async`` copies, if it does nothing else.
    source: CopySource | None = None
    order: int = 0  #: Number of the statement's block in the program

    def __str__(self) -> str:
        where = f" in block {self.context.block}" if self.context.block else ""
        return f"{self.kind} of {self.buffer.name}{list(self.indices)}{where}"

    @property
    def is_write(self) -> bool:
        """Whether it writes memory."""
        return self.kind in ("store", "stmatrix", "cp.async")

    @cached_property
    def scope(self) -> str:
        """Memory of the buffer: ``global``, ``shared``, ``local``, ``warp``, ..."""
        return str(self.buffer.scope())

    @cached_property
    def size(self) -> int:
        """Bytes of an element."""
        return element_bytes(self.buffer)

    @property
    def loops(self) -> tuple[LoopVar, ...]:
        """Loops around it, outermost first."""
        return self.context.loops

    @property
    def marks(self) -> Mapping[str, Any]:
        """Annotations of the blocks around it."""
        return self.context.marks

    @cached_property
    def vector(self) -> int:
        """Elements that a thread moves at once, where vectors are loops."""
        return prod(loop.count for loop in self.loops if loop.kind == "vectorized")

    @cached_property
    def instruction(self) -> str:
        """Name of the tensor intrinsic that the block becomes, or nothing."""
        names = self.marks.get(TENSOR_CORE, ())
        return str(names[0]) if len(names) else ""

    @cached_property
    def repeats(self) -> int:
        """How often a thread issues it."""
        return prod(loop.count for loop in self.loops if loop.repeats)

    @cached_property
    def reduces(self) -> bool:
        """Whether its block adds up."""
        axes = self.context.blocks[-1].iter_vars if self.context.blocks else ()
        return any(int(axis.iter_type) == IterVar.CommReduce for axis in axes)

    @property
    def is_result(self) -> bool:
        """Whether it is the result of a reduction, which is in memory only after the last step."""
        return self.reduces and self.kind == "store"

    @property
    def is_own_sum(self) -> bool:
        """Whether it is what a reduction has summed so far, which stays in a register."""
        if self.kind != "load" or not self.reduces:
            return False
        return any(one.source.same_as(self.buffer) for one in self.context.blocks[-1].writes)

    def at(self, values: Mapping[int, Any]) -> list[Any]:
        """Indices for arrays of loop values, by the loop's position; None for a loaded one."""
        env: dict[Any, Any] = {
            loop.var: values.get(number, np.int64(0)) for number, loop in enumerate(self.loops)
        }
        bind_lets(env, self.context.lets)
        return [known_value(index, env) for index in self.indices]


def read_accesses(body: Any) -> Iterator[AccessSite]:
    """List the accesses of a statement in the order of the program."""
    blocks: tuple[Any, ...] = ()
    order = 0
    for stmt, context in walk(body):
        if context.blocks is not blocks:
            blocks, order = context.blocks, order + 1
        reader = _ExpressionReader(order)
        if isinstance(stmt, tirx.BufferStore):
            for part in (stmt.value, *stmt.indices):
                reader.read(part, context)
            reader.note(stmt.buffer, "store", stmt.indices, context, source=_copied(stmt))
        else:
            for part in own_parts(stmt):
                reader.read(part, context)
        yield from reader.found


def read_shared_accesses(func: Any) -> list[AccessSite]:
    """List the accesses of shared memory that a function makes, in the order of the program."""
    return [site for site in read_accesses(func.body) if site.scope.startswith("shared")]


class _ExpressionReader:
    """Reads the loads and instructions of an expression, conditional ones under theirs."""

    def __init__(self, order: int) -> None:
        self.order = order
        self.found: list[AccessSite] = []

    def note(
        self,
        buffer: Any,
        kind: str,
        indices: Sequence[Any],
        context: Context,
        size: int | None = None,
        source: CopySource | None = None,
    ) -> None:
        site = AccessSite(buffer, kind, tuple(indices), size, context, source, self.order)
        self.found.append(site)

    def read(self, node: Any, context: Context) -> None:
        handled: list[Any] = []

        def call(node: Any) -> Any:
            name = op_name(node)
            if name in POINTER_OPS:
                self._instruction(node, context)
            elif name == CHOICE:
                self._choice(node.args, context)
                return tvm_ffi.WalkResult.SKIP
            elif name == ops.ADDRESS_OF:
                handled.append(node.args[0])
            return None

        def load(node: Any) -> None:
            if not any(node.same_as(one) for one in handled):
                self.note(node.source, "load", node.indices, context)

        rules = [(tvm.ir.Call, call), (tvm.ir.TensorLoad, load)]
        tvm_ffi.structural_walk(node, rules, order="pre")

    def _instruction(self, node: Any, context: Context) -> None:
        op = POINTER_OPS[node.op.name]
        pointer, source = pointer_of(node, op), source_of(node, op)
        if pointer is not None and str(pointer[0].scope()).startswith("shared"):
            copied = None if source is None else CopySource(*source, _is_sized(node))
            self.note(pointer[0], op.kind, pointer[1], context, op.bytes(node.args), copied)

    def _choice(self, args: Sequence[Any], context: Context) -> None:
        condition, left, right = args
        self.read(condition, context)
        self.read(left, context.under(condition))
        self.read(right, context.under(tirx.Not(condition)))


def _copied(store: Any) -> CopySource | None:
    """What a store takes from global memory as it is, maybe under a condition."""
    value, fills = store.value, False
    while (choice := choice_parts(value)) is not None:
        value, fills = choice[1], True
    if not isinstance(value, tvm.ir.TensorLoad) or value.source.dtype != store.buffer.dtype:
        return None
    if not is_global(value.source):
        return None
    return CopySource(value.source, tuple(value.indices), fills)


def _is_sized(call: Any) -> bool:
    """Whether a ``cp.async`` says how many bytes to read, the rest being zeros."""
    return str(call.op.name).startswith(ops.PTX_PREFIX) and len(call.args) > 3


def loops_in_use(access: AccessSite) -> Iterator[LoopVar]:
    """Iterate over the loops that indices, conditions or lets mention."""
    parts = [*access.indices, *access.context.conditions]
    used = [var for part in parts for var in tirx.analysis.undefined_vars(part)]
    for var, value in reversed(access.context.lets):
        if is_among(var, used):
            used.extend(tirx.analysis.undefined_vars(value))
    yield from (loop for loop in access.loops if is_among(loop.var, used))
