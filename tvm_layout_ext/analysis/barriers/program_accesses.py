"""What the statements of a flat kernel do to its shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ...errors import ScheduleError
from ...ir import ops
from ...ir.conditions import conjuncts
from ...ir.ops import CHOICE
from ...ir.pointers import OPAQUE, POINTER_OPS, atomic_of, constant, pointer_of
from ...ir.queries import is_call_of, nodes_in, op_name
from ..nest import element_bytes
from .program import ATOMIC, READ, WRITE, EnclosingLoop, Program, SharedEffect
from .terms import Scope, Term

#: Begins of the names of operators that synchronise in ways that no barrier plan understands.
_OTHER_SYNC = (
    ops.PTX_MBARRIER_PREFIX,
    ops.CUDA_MBARRIER_PREFIX,
    ops.PTX_CP_ASYNC_BULK_PREFIX,
    ops.PTX_CP_ASYNC_MBARRIER_PREFIX,
    ops.PTX_WGMMA_PREFIX,
    ops.PTX_TCGEN05_PREFIX,
    ops.PTX_BAR_ARRIVE,
    ops.PTX_BAR_SYNC,
    ops.PTX_BARRIER_PREFIX,
    ops.CUDA_CLUSTER_SYNC,
    ops.CUDA_WARPGROUP_SYNC,
)
_JUMPS = (ops.BREAK_LOOP, ops.CONTINUE_LOOP, ops.THREAD_RETURN)
_COPIES = ops.PTX_CP_ASYNC_PREFIX
#: Bits of ``tvm_access_ptr``'s mask.
_MASK_READ, _MASK_WRITE = 1, 2


@dataclass(frozen=True)
class Around:
    """What lies around a statement: variables, loops from the outermost, conditions that hold."""

    scope: Scope
    loops: tuple[EnclosingLoop, ...] = ()
    conditions: tuple[Term, ...] = ()

    def under(self, condition: Term) -> Around:
        """Add a condition."""
        parts = map(condition.part, conjuncts(condition.expr))
        return replace(self, conditions=(*self.conditions, *parts))

    def unless(self, condition: Term) -> Around:
        """Add the opposite of a condition."""
        return self.under(condition.part(tirx.Not(condition.expr)))


@dataclass(frozen=True)
class _SharedView:
    """A shared buffer: its arena, and the byte at which it begins."""

    arena: int
    begin: Term
    element: int
    name: str

    def at(self, index: Any, size: int, around: Around) -> Term:
        """Byte in the arena of an element, by its index among those of so many bytes."""
        index = around.scope.term(index)
        return index.part(self.begin.expr + index.expr * size)


def other_synchronisation(kernel: Any) -> str:
    """Name of an operator by which a kernel synchronises, and that no plan understands."""
    names = map(op_name, nodes_in(kernel, tvm.ir.Call))
    return next((name for name in names if name.startswith(_OTHER_SYNC)), "")


class AccessReader:
    """Finds what expressions and calls do to shared buffers; fills the program with the arenas."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.views: dict[int, _SharedView] = {}

    def allocate(self, buffer: Any) -> None:
        """Take note of an allocation; shared memory is laid out before a kernel runs."""
        if not str(buffer.scope()).startswith("shared"):
            return
        if any(constant(extent) is None for extent in buffer.shape):
            raise ScheduleError(
                f"Buffer {buffer.name} in {buffer.scope()} memory has a symbolic size; shared "
                "memory needs constant extents, such as the bounds of these."
            )
        size = reduce(lambda n, e: n * int(e), buffer.shape, element_bytes(buffer))
        arena = buffer.__chandle__()
        self.program.arenas[arena] = size
        self.views[arena] = _SharedView(arena, Scope().term(0), element_bytes(buffer), buffer.name)
        if str(buffer.scope()) == "shared.dyn":
            self.program.scope = "shared.dyn"

    def declare(self, stmt: Any, around: Around) -> None:
        """Take note of a view."""
        base = self.view_of(stmt.data)
        if base is None:
            return
        size = element_bytes(stmt.buffer)
        begin = base.at(stmt.buffer.ty.elem_offset, size, around)
        name = str(stmt.buffer.name)
        self.views[stmt.buffer.__chandle__()] = _SharedView(base.arena, begin, size, name)

    def view_of(self, data: Any) -> _SharedView | None:
        """View whose address an expression is."""
        if is_call_of(data, ops.BUFFER_DATA):
            data = data.args[0]
        return self.views.get(data.__chandle__())

    def accesses(self, node: Any, around: Around) -> list[SharedEffect]:
        """Loads, and calls that take addresses, of an expression or a statement without a body."""
        found: list[SharedEffect] = []

        def call(call: Any) -> Any:
            name = op_name(call)
            if name in _JUMPS:
                self.program.jump = name
            here = self._call(name, call, around)
            if here is None:
                return None
            found.extend(here)
            return tvm_ffi.WalkResult.SKIP

        def load(load: Any) -> None:
            found.extend(self.at(load.source, load.indices, READ, around))

        def let(let: Any) -> Any:
            found.extend(self.accesses(let.value, around))
            value = around.scope.term(let.value)
            inside = replace(around, scope=around.scope.having(let.var, value))
            found.extend(self.accesses(let.body, inside))
            return tvm_ffi.WalkResult.SKIP

        rules: Any = [(tirx.Let, let), (tvm.ir.Call, call), (tvm.ir.TensorLoad, load)]
        tvm_ffi.structural_walk(node, rules, order="pre")
        return found

    def _choice(self, args: Sequence[Any], around: Around) -> list[SharedEffect]:
        condition = around.scope.term(args[0])
        return [
            *self.accesses(args[0], around),
            *self.accesses(args[1], around.under(condition)),
            *self.accesses(args[2], around.unless(condition)),
        ]

    def _call(self, name: str, call: Any, around: Around) -> list[SharedEffect] | None:
        """Accesses of a call, arguments included; None if it is nothing special itself."""
        if name == CHOICE:
            return self._choice(call.args, around)
        if name in POINTER_OPS:
            return self._instruction(name, call, around)
        if name.startswith(_COPIES) and name.endswith(("_src_size", "_ignore_src")):
            return self._instruction(name.rpartition("_")[0].rpartition("_")[0], call, around)
        updated = atomic_of(tirx.Evaluate(call))
        if updated is not None:
            rest = [found for arg in call.args[1:] for found in self._argument(arg, around)]
            return [*rest, *self.at(updated.source, updated.indices, ATOMIC, around)]
        if name == ops.TVM_ACCESS_PTR:
            return self._range(call, around)
        if name in OPAQUE:
            return self._opaque(call, around)
        return None

    def _argument(self, arg: Any, around: Around) -> list[SharedEffect]:
        """Accesses of an argument that is not the atomically updated address."""
        return [] if is_call_of(arg, ops.ADDRESS_OF) else self.accesses(arg, around)

    def _instruction(self, name: str, call: Any, around: Around) -> list[SharedEffect]:
        op = POINTER_OPS[name]
        at = op.pointer(call.args)
        skip = (at, at + 1) if op.has_offset else (at,)
        rest = [arg for i, arg in enumerate(call.args) if i not in skip]
        found = [one for arg in rest for one in self.accesses(arg, around)]
        pointer, size = pointer_of(call, op), op.bytes(call.args)
        if pointer is None or size is None:
            return found + self.accesses(call.args[at], around)
        kind = READ if op.kind == "ldmatrix" else WRITE
        buffer, indices = pointer
        copy = op.kind == "cp.async"
        return found + self.at(buffer, indices, kind, around, size=size, is_async=copy)

    def _range(self, call: Any, around: Around) -> list[SharedEffect]:
        """What ``tvm_access_ptr`` gives access to."""
        kind, data, offset, extent, mask = call.args
        view = self.view_of(data)
        if view is None:
            return []
        element = tvm.DataType(str(kind.ty.dtype)).itemsize
        begin = view.at(offset, element, around)
        size = around.scope.term(extent).constant()
        kinds = [
            k for k, bit in ((READ, _MASK_READ), (WRITE, _MASK_WRITE)) if int(mask.value) & bit
        ]
        if size is None:
            return [self._effect(view, k, None, 0, around) for k in kinds]
        return [self._effect(view, k, begin, size * element, around) for k in kinds]

    def _opaque(self, call: Any, around: Around) -> list[SharedEffect]:
        """An address that goes who knows where: anything may be read and written."""
        target = call.args[0]
        buffer = target.source if isinstance(target, tvm.ir.TensorLoad) else target
        view = self.view_of(buffer)
        if view is None:
            indices = target.indices if buffer is not target else []
            return [one for index in indices for one in self.accesses(index, around)]
        return [self._effect(view, kind, None, 0, around) for kind in (READ, WRITE)]

    def at(
        self,
        buffer: Any,
        indices: Sequence[Any],
        kind: str,
        around: Around,
        size: int = 0,
        is_async: bool = False,
    ) -> list[SharedEffect]:
        """The access of an element or vector, if the buffer is shared."""
        view = self.views.get(buffer.__chandle__())
        if view is None:
            return []
        if len(indices) != 1:
            return [self._effect(view, kind, None, 0, around)]
        begin = view.at(indices[0], view.element, around)
        return [self._effect(view, kind, begin, size or view.element, around, is_async)]

    def _effect(
        self,
        view: _SharedView,
        kind: str,
        begin: Term | None,
        size: int,
        around: Around,
        is_async: bool = False,
    ) -> SharedEffect:
        """An access of some bytes, or of any if the first is not known."""
        while begin is not None and (
            view.element % self.program.granule or size % self.program.granule
        ):
            self.program.granule //= 2
        where = (around.loops, around.conditions)
        return SharedEffect(view.name, view.arena, kind, begin, size, is_async, *where)
