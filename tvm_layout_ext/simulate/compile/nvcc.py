"""What nvcc makes of the loads and stores of a device function.

It surely leaves out a load of what the thread has loaded or stored on every way there, makes one
instruction of neighbours in shared memory, and loads before a loop what stays the same in it. It
may do the same across conditions, and across the turns of a loop that it unrolls. So an access has
two plans: what is counted, and the least of it, for which see :mod:`.nvcc_least`.

The rules were read off the SASS of CUDA 13.0 for sm_90a. Elements of global memory are never
joined: nothing says how its pointers are aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tvm import ir, tirx

from ...ir import ops
from ...ir.pointers import constant
from ...ir.queries import is_call_of, nodes_in, op_name
from ..memory.access import AccessInstruction
from ..memory.located_access import NvccPlan
from ..model.linear import Form, form_of
from ..model.places import Places, handle
from .nvcc_least import CountedLoop, Group, LeastRequests, Unit, windows


class Nvcc:
    """Follows the compilation of a device function, statement by statement."""

    def __init__(self, kernel: Any, places: Places) -> None:
        self._places = places
        allocated = nodes_in(kernel.body, tirx.AllocBuffer)
        odd = [one.buffer for one in allocated if one.annotations.get(ops.VOLATILE)]
        self._volatile = {places.at(buffer).storage.number for buffer in odd}
        #: What others may write. Parameters are ``__restrict__``.
        self._changing = {one.number for one in places.storages if one.written or one.length}
        #: Shared arrays that nobody reads: nvcc has no stores to them.
        self._unread = _unread(kernel, places)
        self._bound: dict[int, Form] = {}
        self._loops: tuple[CountedLoop, ...] = ()
        self._branches: tuple[int, ...] = ()
        self._block = self._stage = 0
        #: Bytes that the thread holds in registers on every way here: storage, terms, byte.
        self._held: set[tuple[int, Any, int]] = set()
        #: Neighbours to be, of this block: of a kind, a storage, branches, terms.
        self._groups: dict[tuple[str, int, Any, Any], Group] = {}
        self._events: list[Unit | CountedLoop | None] = []
        self._units: list[tuple[AccessInstruction, list[Unit]]] = []

    def finish(self) -> None:
        """Find the least of each access, once all are known."""
        self._end_block()
        least = LeastRequests(self._places)
        for event in self._events:
            least.follow(event)
        least.settle()
        for access, units in self._units:
            if units:
                access.least = least.plan(access.plan, units)

    def bind(self, variable: Any, value: Any) -> None:
        """A variable has a value from here on."""
        self._bound[handle(variable)] = self._form(value, 0)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """What is compiled inside runs under a condition."""
        outer, before, seen = self._branches, set(self._held), len(self._events)
        self._block += 1
        self._branches = (*outer, self._block)
        yield
        self._branches = outer
        self._held &= before
        # A choice between values that are there already is no branch.
        if len(self._events) > seen:
            self._end_block()

    @contextmanager
    def loop(self, statement: Any, slot: int) -> Iterator[None]:
        """What is compiled inside is the body of a loop."""
        loop = self._loop_of(statement, slot)
        if loop.extent == 1 and loop.first is not None:
            self._bound[loop.variable] = Form(loop.first)
            yield
            return
        self._end_block()
        self._lose(loop.written | (self._changing if loop.waits else set()))
        self._events.append(loop)
        before, outer = set(self._held), self._loops
        self._loops = (*outer, loop)
        yield
        self._end_block()
        self._loops = outer
        is_sure = loop.extent and not nodes_in(statement.body, tirx.Break, tirx.Continue)
        after = self._held - before if is_sure else set()
        self._held &= before
        self._held |= {one for one in after if not Form(0, one[1]).uses(loop.variable)}

    def _loop_of(self, statement: Any, slot: int) -> CountedLoop:
        body, variable = statement.body, getattr(statement, "loop_var", None)
        stores = nodes_in(body, tirx.BufferStore)
        written = {self._places.at(store.buffer).storage.number for store in stores}
        waits = any(_clobbers(one.value) for one in nodes_in(body, tirx.Evaluate))
        waits = waits or any(map(_is_atomic, nodes_in(body, ir.Call)))
        first = extent = None
        if variable is not None and getattr(statement, "step", None) is None:
            first, extent = constant(statement.min), constant(statement.extent)
        number = 0 if variable is None else handle(variable)
        return CountedLoop(number, slot, first, extent, waits, written, len(self._branches))

    def call(self, call: Any) -> None:
        """A statement is a call."""
        if _clobbers(call):
            self.clobber()
        if _is_barrier(call):
            self._stage += 1
            self._events.append(None)

    def clobber(self) -> None:
        """Memory may be another's from here on."""
        self._end_block()
        self._lose(self._changing)

    def access(self, access: AccessInstruction, start: Any) -> None:
        """A load or store of global or shared memory has been compiled."""
        place, size = access.place, access.place.dtype.itemsize
        if place.storage.number in self._volatile:
            return
        offset = place.offset
        shift = Form(offset) if isinstance(offset, int) else self._form(offset, 0)
        units: list[Unit] = []
        for lane, byte, width in access.plan.made[()]:
            form = self._form(start, lane).plus(shift).times(size).plus(Form(byte))
            where = self._loops, self._branches, self._block, self._stage
            unit = Unit(access, (lane, byte, width), form, *where)
            if unit.storage not in self._unread and self._is_made(unit):
                units.append(unit)
        self._units.append((access, units))
        made = tuple(unit.instruction for unit in units)
        access.plan = NvccPlan({(): made}, once=self._once(units))

    def _form(self, expr: Any, lane: int) -> Form:
        return form_of(expr, lane, self._bound, self._is_constant)

    def _is_constant(self, buffer: Any) -> bool:
        return self._places.at(buffer).storage.number not in self._changing

    def _is_made(self, unit: Unit) -> bool:
        """Whether there is an instruction; note what it leaves in registers."""
        storage, terms = unit.storage, unit.form.terms
        cells = {(storage, terms, cell) for cell in unit.cells(unit.form)}
        if unit.is_load and cells <= self._held:
            return False
        if not unit.is_load:
            self._held = {one for one in self._held if one[0] != storage or one[1] == terms}
            for loop in self._loops:
                loop.stored.setdefault(storage, set()).add(terms)
        self._held |= cells
        self._events.append(unit)
        if unit.is_shared:
            for key in [*self._groups]:
                if key[1] == storage and key[0] != unit.access.kind:
                    _join(self._groups.pop(key))
            group = unit.access.kind, storage, unit.branches, terms
            self._groups.setdefault(group, []).append((unit.form, unit, ()))
        return True

    def _once(self, units: list[Unit]) -> tuple[tuple[int, int], ...]:
        """Slots of loops before which all of a load is made, and their first values."""
        found: list[tuple[int, int]] = []
        for loop in reversed(units[0].loops if units and units[0].is_load else ()):
            changing = loop.waits and units[0].storage in self._changing
            stays = not changing and units[0].storage not in loop.written
            is_sure = loop.extent and len(units[0].branches) == loop.branches
            moves = any(unit.form.uses(loop.variable) for unit in units)
            if loop.first is None or not (stays and is_sure) or moves:
                break
            found.append((loop.slot, loop.first))
        return tuple(found)

    def _lose(self, storages: set[int]) -> None:
        self._held = {one for one in self._held if one[0] not in storages}

    def _end_block(self) -> None:
        """What comes next is no neighbour of what was."""
        self._block += 1
        for group in self._groups.values():
            _join(group)
        self._groups.clear()


def _join(group: Group) -> None:
    """Make instructions of neighbours, in the plans of those that they begin with."""
    joined = {unit: made for unit, _, made in windows(group, is_sure=True)}
    for _, unit, _ in group:
        made = unit.access.plan.made
        kept = {*made[()]} - {unit.instruction}
        made[()] = tuple(sorted(kept | ({joined[unit]} if unit in joined else set())))


def _unread(kernel: Any, places: Places) -> set[int]:
    calls = [call for call in nodes_in(kernel.body, ir.Call) if is_call_of(call, ops.BUFFER_DATA)]
    buffers = [call.args[0] for call in calls if not isinstance(call.args[0], ir.Var)]
    pointed = {places.at(buffer).storage.number for buffer in buffers}
    never = [one for one in places.storages if one.length and not one.read]
    return {one.number for one in never} - pointed


def _is_barrier(call: Any) -> bool:
    name = op_name(call)
    if name == ops.TVM_STORAGE_SYNC:
        return str(call.args[0].value) != "warp"
    return name == ops.CUDA_CTA_SYNC


def _clobbers(value: Any) -> bool:
    """Whether memory may be another's after a statement of this value."""
    if not isinstance(value, ir.Call) or is_call_of(value, ops.ASSUME):
        return False
    return not is_call_of(value, ops.TVM_STORAGE_SYNC) or _is_barrier(value)


def _is_atomic(call: Any) -> bool:
    name = op_name(call)
    if name in (ops.CALL_EXTERN, ops.CALL_PURE_EXTERN):
        name = str(call.args[0].value)
    return "atomic" in name
