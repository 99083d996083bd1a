"""What nvcc makes of the loads and stores of a device function.

It surely leaves out a load of what the thread has loaded or stored on every way there, makes one
instruction of neighbours in shared memory, and loads before a loop what stays the same in it. It
may do the same across conditions, and across iterations where it unrolls a loop. So an access has
two plans: what is counted, and the least of it that nvcc cannot do without.

The rules were read off the SASS of CUDA 13.0 for sm_90a. Elements of global memory are never
joined: nothing says how its pointers are aligned. A loop of 300 turns was unrolled, one of 400 not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from tvm import ir, tirx
from tvm.ir.prim.expr import IntImm

from ...gpu.counts import instructions
from ...gpu.hardware import MAX_ACCESS_BYTES
from ...ir import ops
from ...ir.queries import nodes_in
from ..memory.access import AccessInstruction
from ..memory.nvcc_plan import Instruction, NvccPlan
from ..model.linear import Form, form_of
from ..model.places import Places, handle
from .atomics import NAMES

_MOST_TURNS = 384
#: Turns that are looked at one by one, of all accesses of a function.
_LOOKED_AT = 20_000


@dataclass(eq=False)
class _Loop:
    """A loop; ``first`` and ``extent`` where they are known. ``stored`` has terms by storage."""

    variable: int
    slot: int
    first: int | None
    extent: int | None
    waits: bool
    written: set[int]
    branches: int
    stored: dict[int, set[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class _Unit:
    """One instruction of an access, at ``form`` bytes of its storage."""

    access: AccessInstruction
    instruction: Instruction
    form: Form
    loops: tuple[_Loop, ...]
    branches: tuple[int, ...]
    stage: int
    block: int

    @property
    def storage(self) -> int:
        return self.access.place.storage.number

    @property
    def is_shared(self) -> bool:
        return self.access.place.storage.scope != "global"

    def cells(self, form: Form) -> range:
        width, step = self.instruction[2], self.access.place.storage.granule
        return range(form.base, form.base + width, step)


#: Instructions at forms of the same terms, each with the turn of the loops in which it is made.
_Group = list[tuple[Form, _Unit, tuple[int, ...]]]


class Nvcc:
    """Follows the compilation of a device function, statement by statement."""

    def __init__(self, kernel: Any, places: Places) -> None:
        self._places = places
        self._restrict = bool(kernel.attrs.get("tirx.noalias", 0))
        self._volatile = {
            places.at(node.buffer).storage.number
            for node in nodes_in(kernel.body, tirx.AllocBuffer)
            if node.annotations.get("tirx.volatile")
        }
        self._bound: dict[int, Form] = {}
        self._loops: tuple[_Loop, ...] = ()
        self._branches: tuple[int, ...] = ()
        self._made = 0
        self._stage = 0
        #: Bytes that the thread holds in registers on every way here: storage, terms, byte.
        self._held: set[tuple[int, Any, int]] = set()
        #: Neighbours to be, since the last branch: of a kind and a storage, with equal terms.
        self._block: dict[tuple[str, int, Any, Any], _Group] = {}
        self._events: list[_Unit | _Loop | None] = []
        self._units: list[tuple[AccessInstruction, list[_Unit]]] = []

    # The walk.

    def bind(self, variable: Any, value: Any) -> None:
        """A variable has a value from here on."""
        self._bound[handle(variable)] = self._form(value, 0)

    @contextmanager
    def branch(self) -> Iterator[None]:
        """What is compiled inside runs under a condition."""
        outer, before, seen = self._branches, set(self._held), len(self._events)
        self._made += 1
        self._branches = (*outer, self._made)
        yield
        self._branches = outer
        self._held &= before
        if len(self._events) > seen:
            self._join()

    @contextmanager
    def loop(self, statement: Any, slot: int) -> Iterator[None]:
        """What is compiled inside is the body of a loop."""
        loop = self._loop_of(statement, slot)
        if loop.extent == 1:
            yield
            return
        self._join()
        self._forget(loop.written, waits=loop.waits)
        self._events.append(loop)
        before, outer = set(self._held), self._loops
        self._loops = (*outer, loop)
        yield
        self._join()
        self._loops = outer
        runs = loop.extent is not None and not nodes_in(statement.body, tirx.Break, tirx.Continue)
        inside = self._held - before
        after = {one for one in inside if runs and not Form(0, one[1]).uses(loop.variable)}
        self._held = (self._held & before) | after

    def _loop_of(self, statement: Any, slot: int) -> _Loop:
        stores = nodes_in(statement.body, tirx.BufferStore)
        written = {self._places.at(store.buffer).storage.number for store in stores}
        waits = any(map(_clobbers, nodes_in(statement.body, ir.Call)))
        variable = getattr(statement, "loop_var", None)
        known = variable is not None and getattr(statement, "step", None) is None
        first, extent = (
            (int(one.value) if known and isinstance(one, IntImm) else None)
            for one in (getattr(statement, "min", None), getattr(statement, "extent", None))
        )
        number = 0 if variable is None else handle(variable)
        extent = extent or None
        return _Loop(number, slot, first, extent, waits, written, len(self._branches))

    def call(self, call: Any) -> None:
        """A call that stands alone; a barrier lets other threads write shared memory."""
        if _clobbers(call):
            self._join()
            self._stage += 1
            self._forget((), waits=True)
            self._events.append(None)

    def access(self, access: AccessInstruction, start: Any, lanes: int) -> None:
        """A load or store of global or shared memory has been compiled."""
        if self._is_volatile(access):
            return
        place, size = access.place, access.place.dtype.itemsize
        offset = place.offset if isinstance(place.offset, int) else 0
        shift = Form(offset) if place.offset is offset else self._form(place.offset, 0)
        if access.together:
            whole = [(0, *one) for one in instructions(lanes * size)]
        else:
            whole = [(lane, 0, size) for lane in range(lanes)]
        units: list[_Unit] = []
        self._units.append((access, units))
        for lane, start_byte, width in whole:
            form = self._form(start, lane).plus(shift).times(size).plus(Form(start_byte))
            one = (lane, start_byte, width)
            where = self._loops, self._branches, self._stage, self._made
            unit = _Unit(access, one, form, *where)
            if self._note(unit):
                units.append(unit)
        access.plan = NvccPlan(tuple(unit.instruction for unit in units), self._once(units))

    def _form(self, expr: Any, lane: int) -> Form:
        return form_of(expr, lane, self._bound, self._gives_the_same)

    def _gives_the_same(self, buffer: Any) -> bool:
        return self._is_constant(self._places.at(buffer).storage)

    def _is_volatile(self, access: AccessInstruction) -> bool:
        return access.place.storage.number in self._volatile

    def _note(self, unit: _Unit) -> bool:
        """Whether an instruction is made; what it holds from here on."""
        is_load, storage, terms = unit.access.kind == "load", unit.storage, unit.form.terms
        cells = {(storage, terms, cell) for cell in unit.cells(unit.form)}
        if is_load and cells <= self._held:
            return False
        if not is_load:
            self._held = {one for one in self._held if one[0] != storage or one[1] == terms}
            for loop in self._loops:
                loop.stored.setdefault(storage, set()).add(terms)
        self._held |= cells
        self._events.append(unit)
        if unit.is_shared:
            other = "store" if is_load else "load"
            for key in [key for key in self._block if key[:2] == (other, storage)]:
                _join(self._block.pop(key))
            block = unit.access.kind, storage, unit.branches, terms
            self._block.setdefault(block, []).append((unit.form, unit, ()))
        return True

    def _forget(self, written: Iterable[int], *, waits: bool) -> None:
        """Drop what others, or stores of the loop that begins, may change."""
        lost = {
            storage.number
            for storage in self._places.storages
            if storage.number in written or (waits and not self._is_constant(storage))
        }
        self._held = {one for one in self._held if one[0] not in lost}

    def _is_constant(self, storage: Any) -> bool:
        return storage.scope == "global" and not storage.written and self._restrict

    def _once(self, units: list[_Unit]) -> tuple[tuple[int, int], ...]:
        """Slots of loops before which all of an access is loaded, and their first values."""
        found: list[tuple[int, int]] = []
        for unit in units[:1] if units and units[0].access.kind == "load" else ():
            for loop in reversed(unit.loops):
                kept = not loop.waits or self._is_constant(unit.access.place.storage)
                stays = kept and unit.storage not in loop.written
                always = loop.branches == len(unit.branches) and loop.extent is not None
                if loop.first is None or not (stays and always) or _moves(units, loop):
                    break
                found.append((loop.slot, loop.first))
        return tuple(found)

    def _join(self) -> None:
        """A branch or barrier ends what may be neighbours."""
        self._made += 1
        for group in self._block.values():
            _join(group)
        self._block.clear()

    # The least.

    def finish(self) -> None:
        """Find the least of each access, once all are known."""
        self._join()
        least = _Least(self._places)
        for event in self._events:
            least.follow(event)
        least.settle()
        for access, units in self._units:
            assert access.plan is not None
            access.plan = least.plan(access.plan, units)


def _moves(units: list[_Unit], loop: _Loop) -> bool:
    return any(unit.form.uses(loop.variable) for unit in units)


def _clobbers(call: Any) -> bool:
    """Whether others may write memory before a call ends, or it does itself."""
    name = str(getattr(call.op, "name", ""))
    if name == ops.TVM_STORAGE_SYNC:
        return str(call.args[0].value) != "warp"
    if name in (ops.CALL_EXTERN, ops.CALL_PURE_EXTERN):
        return str(call.args[0].value) in NAMES
    return name.startswith(("tirx.ptx", "tirx.cuda.cta", "tirx.cuda.warp_sync", "tirx.cuda.atomic"))


def _join(group: _Group) -> None:
    """Make instructions of neighbours, in the plans of what they begin with."""
    alone = {unit: unit.instruction for _, unit, _ in group}
    for unit, _, instruction in _windows(group):
        _replace(unit, instruction)
        del alone[unit]
    for unit in alone:
        _replace(unit, None)


def _replace(unit: _Unit, instruction: Instruction | None) -> None:
    plan = unit.access.plan
    assert plan is not None
    made = {*plan.counted} - {unit.instruction} | ({instruction} if instruction else set())
    plan.counted = tuple(sorted(made))


def _windows(group: _Group) -> list[tuple[_Unit, tuple[int, ...], Instruction]]:
    """Instructions of shared memory that a group needs, each with what it begins with.

    A window of three and more elements is one load if more than half of it is wanted, and one
    store if all of it is.
    """
    left = {form.base: (unit, turn) for form, unit, turn in group}
    divisor = next(iter(group))[0].divisor if group else 0
    made = []
    while left:
        base = min(left)
        unit, turn = left[base]
        lane, start, width = unit.instruction
        wide = MAX_ACCESS_BYTES
        while wide > width:
            low = base // wide * wide
            inside = [at for at in left if low <= at < low + wide]
            bytes_inside = sum(left[at][0].instruction[2] for at in inside)
            enough = wide if unit.access.kind == "store" or wide == 2 * width else wide // 2 + 1
            if divisor % wide == 0 and bytes_inside >= enough:
                break
            wide //= 2
        else:
            low, wide, inside = base, width, [base]
        made.append((unit, turn, (lane, start + low - base, wide)))
        for at in inside:
            del left[at]
    return made


class _Least:
    """Instructions that nvcc cannot do without, whatever it unrolls and joins."""

    def __init__(self, places: Places) -> None:
        self._shared = {s.number for s in places.storages if s.scope != "global"}
        self._held: dict[tuple[int, Any], dict[int, tuple[int, tuple[int, ...]]]] = {}
        self._last: dict[Any, tuple[_Unit, tuple[int, ...]]] = {}
        self._groups: dict[Any, _Group] = {}
        self._stage = 0
        self._found: dict[_Unit, dict[tuple[int, ...], list[Instruction]]] = {}
        self._looked = 0

    def follow(self, event: _Unit | _Loop | None) -> None:
        """Take the next access, the begin of a loop, or a barrier (None)."""
        if isinstance(event, _Unit):
            self._take(event)
        elif event is None or event.waits:
            self._stage += 1
            self._drop(self._shared)
        else:
            self._drop(set(event.stored))

    def _drop(self, storages: set[int]) -> None:
        self._held = {key: one for key, one in self._held.items() if key[0] not in storages}

    def _take(self, unit: _Unit) -> None:
        over, _ = _loops_over(unit)
        if not unit.form.is_known:
            self._found[unit] = {}
            return
        turns = [range(loop.first, loop.first + loop.extent) for loop in over]
        found = self._found[unit] = {}
        for turn in product(*turns):
            self._looked += 1
            if self._looked > _LOOKED_AT:
                # Of what was not looked at nothing is certain.
                return
            form = unit.form.given({loop.variable: i for loop, i in zip(over, turn, strict=True)})
            if unit.access.kind == "store":
                self._store(unit, form, turn)
            elif not self._load(unit, form):
                continue
            found[turn] = [unit.instruction]
            if unit.is_shared:
                key = unit.access.kind, unit.branches, unit.block, unit.storage, form.terms
                self._groups.setdefault(key, []).append((form, unit, turn))

    def _load(self, unit: _Unit, form: Form) -> bool:
        held = self._held.setdefault((unit.storage, form.terms), {})
        cells = unit.cells(form)
        if all(cell in held and _reaches(held[cell], unit) for cell in cells):
            return False
        held.update(dict.fromkeys(cells, (unit.stage, unit.branches)))
        return True

    def _store(self, unit: _Unit, form: Form, turn: tuple[int, ...]) -> None:
        stage = self._stage if unit.is_shared else 0
        key = unit.storage, stage, form, unit.instruction[2]
        if key in self._last:
            earlier, when = self._last[key]
            self._found[earlier].pop(when, None)
        self._last[key] = unit, turn
        kept = self._held.get((unit.storage, form.terms), {})
        self._drop({unit.storage})
        kept.update(dict.fromkeys(unit.cells(form), (unit.stage, unit.branches)))
        self._held[unit.storage, form.terms] = kept

    def settle(self) -> None:
        """Join neighbours in shared memory, also across turns."""
        for group in self._groups.values():
            alive = [one for one in group if one[2] in self._found[one[1]]]
            for _, unit, turn in alive:
                self._found[unit][turn] = []
            for unit, turn, instruction in _windows(alive):
                self._found[unit][turn].append(instruction)

    def plan(self, plan: NvccPlan, units: list[_Unit]) -> NvccPlan:
        """The plan of an access with its least, where that is less than what is counted."""
        if not units:
            return plan
        over, stays = _loops_over(units[0])
        least: dict[tuple[int, ...], list[Instruction]] = {}
        for unit in units:
            for turn, found in self._found[unit].items():
                least.setdefault(turn, []).extend(found)
        whole = 1
        for loop in over:
            whole *= loop.extent
        same = all(sorted(found) == list(plan.counted) for found in least.values())
        if same and len(least) == whole and {s for s, _ in stays} == {s for s, _ in plan.once}:
            return plan
        slots = tuple(loop.slot for loop in over)
        every = {turn: tuple(found) for turn, found in least.items()}
        return NvccPlan(plan.counted, plan.once, every, slots, tuple(stays))


def _reaches(held: tuple[int, tuple[int, ...]], unit: _Unit) -> bool:
    """Whether a value may be at hand: on the way here, or with no barrier in between."""
    stage, branches = held
    return stage == unit.stage or branches == unit.branches[: len(branches)]


def _loops_over(unit: _Unit) -> tuple[list[Any], list[tuple[int, int]]]:
    """Loops that nvcc may unroll around an access, and those in which it may stay the same."""
    over: list[Any] = []
    stays: list[tuple[int, int]] = []
    turns = 1
    for loop in reversed(unit.loops):
        others = loop.stored.get(unit.storage, set()) - {unit.form.terms}
        if others or (loop.waits and unit.is_shared) or loop.first is None:
            break
        if not unit.form.uses(loop.variable):
            stays.append((loop.slot, loop.first))
        elif loop.extent is not None and turns * loop.extent <= _MOST_TURNS:
            turns *= loop.extent
            over.append(loop)
        else:
            break
    return over, stays
