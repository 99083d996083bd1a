"""The instructions that nvcc cannot do without, whatever it unrolls, keeps in registers and joins.

A thread loads an element once while no other may change it, and stores the last of its values. What
the turns of a loop make of an index is looked at turn by turn. A loop of 300 turns was unrolled by
nvcc, one of 400 was not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ...gpu.hardware import MAX_ACCESS_BYTES
from ..memory.access import AccessInstruction
from ..memory.located_access import Instruction, NvccPlan
from ..model.linear import Form
from ..model.places import Places
from ..model.values import is_float

_WORD = 4
_MOST_TURNS = 384
#: Turns of all accesses of a function; of what comes after them nothing is certain.
_LOOKED_AT = 20_000

Turn = tuple[int, ...]


@dataclass(eq=False)
class CountedLoop:
    """A loop; ``first`` and ``extent`` where they are known, and what its body does.

    ``waits`` says whether other threads may write memory in it, ``written`` has storages,
    ``stored`` the terms of stores by storage, ``branches`` how many conditions are around it.
    """

    variable: int
    slot: int
    first: int | None
    extent: int | None
    waits: bool
    written: set[int]
    branches: int
    stored: dict[int, set[Any]] = field(default_factory=dict)


@dataclass(eq=False)
class Unit:
    """One instruction of an access, at ``form`` bytes of its storage.

    ``branches`` are the conditions around it, ``stage`` counts barriers; between the instructions
    of a ``block`` nothing branches.
    """

    access: AccessInstruction
    instruction: Instruction
    form: Form
    loops: tuple[CountedLoop, ...]
    branches: tuple[int, ...]
    block: int
    stage: int

    @property
    def storage(self) -> int:
        """Number of its storage."""
        return self.access.place.storage.number

    @property
    def is_shared(self) -> bool:
        """Whether it is in shared memory."""
        return self.access.place.storage.scope != "global"

    @property
    def is_load(self) -> bool:
        """Whether it loads."""
        return self.access.kind == "load"

    def cells(self, form: Form) -> range:
        """Bytes at which the elements of its storage begin that it touches."""
        width, step = self.instruction[2], self.access.place.storage.granule
        return range(form.base, form.base + width, step)


#: Instructions at forms of the same terms, each with the turn of the loops in which it is made.
Group = list[tuple[Form, Unit, Turn]]


def windows(group: Group, *, is_sure: bool) -> list[tuple[Unit, Turn, Instruction]]:
    """Instructions of shared memory that a group needs, each with what it begins with.

    A window of more than two elements is loaded at once if more than half of it is wanted, and
    stored at once if all of it is. Of elements under 4 bytes this ``is_sure`` only if those wanted
    begin the window and have no gap, for float16 up to four, and for no narrower float: copies of
    these were joined, operands were not.
    """
    left = {form.base: (unit, turn) for form, unit, turn in group}
    divisor = group[0][0].divisor if group else 0
    made = []
    while left:
        base = min(left)
        unit, turn = left[base]
        lane, start, width = unit.instruction
        low, inside = base, [base]
        wide = max(width, _widest(unit)) if is_sure else MAX_ACCESS_BYTES
        while wide > width:
            low = base // wide * wide
            inside = [at for at in left if low <= at < low + wide]
            wanted = sum(left[at][0].instruction[2] for at in inside)
            end = max(at + left[at][0].instruction[2] for at in inside)
            gaps = not is_sure or width >= _WORD or end - low == wanted
            half = unit.is_load and wide > 2 * width and wanted > wide // 2 and gaps
            if divisor % wide == 0 and (half or wanted == wide):
                break
            low, wide, inside = base, wide // 2, [base]
        made.append((unit, turn, (lane, start + low - base, wide)))
        for at in inside:
            del left[at]
    return made


def _widest(unit: Unit) -> int:
    """Bytes of the widest load or store that neighbours of its type become."""
    dtype = unit.access.place.dtype
    if not (unit.is_load and is_float(dtype) and dtype.itemsize < _WORD):
        return MAX_ACCESS_BYTES
    return 8 if dtype == np.float16 else dtype.itemsize


class LeastRequests:
    """Follows the accesses, loops and barriers of a device function."""

    def __init__(self, places: Places) -> None:
        self._shared = {s.number for s in places.storages if s.scope != "global"}
        #: Bytes that may be at hand, by storage and terms, with the load or store that left them.
        self._held: dict[tuple[int, Any], dict[int, Unit]] = {}
        self._last: dict[Any, tuple[Unit, Turn]] = {}
        self._groups: dict[Any, Group] = {}
        self._found: dict[Unit, dict[Turn, list[Instruction]]] = {}
        self._looked = 0

    def follow(self, event: Unit | CountedLoop | None) -> None:
        """Take the next access, the begin of a loop, or a barrier (None)."""
        if isinstance(event, Unit):
            self._take(event)
        elif event is None or event.waits:
            self._drop(self._shared)
        else:
            for storage, stored in event.stored.items():
                lost = [key for key in self._held if key[0] == storage and stored - {key[1]}]
                for key in lost:
                    del self._held[key]

    def _drop(self, storages: set[int]) -> None:
        self._held = {key: one for key, one in self._held.items() if key[0] not in storages}

    def _take(self, unit: Unit) -> None:
        found = self._found[unit] = {}
        over, _ = _loops_over(unit)
        turns = product(*(range(loop.first, loop.first + loop.extent) for loop in over))
        for turn in turns if unit.form.is_known else ():
            self._looked += 1
            if self._looked > _LOOKED_AT:
                return
            form = unit.form.given({loop.variable: i for loop, i in zip(over, turn, strict=True)})
            if not unit.is_load:
                self._store(unit, form, turn)
            elif not self._is_loaded(unit, form):
                continue
            found[turn] = [unit.instruction]
            if unit.is_shared:
                key = unit.access.kind, unit.storage, unit.branches, unit.block, form.terms
                self._groups.setdefault(key, []).append((form, unit, turn))

    def _is_loaded(self, unit: Unit, form: Form) -> bool:
        held = self._held.setdefault((unit.storage, form.terms), {})
        cells = unit.cells(form)
        if all(cell in held and _reaches(held[cell], unit) for cell in cells):
            return False
        held.update(dict.fromkeys(cells, unit))
        return True

    def _store(self, unit: Unit, form: Form, turn: Turn) -> None:
        key = unit.storage, unit.stage if unit.is_shared else 0, form, unit.instruction[2]
        if key in self._last:
            earlier, when = self._last[key]
            self._found[earlier].pop(when, None)
        self._last[key] = unit, turn
        mine = unit.storage, form.terms
        kept = self._held.get(mine, {})
        self._drop({unit.storage})
        self._held[mine] = kept | dict.fromkeys(unit.cells(form), unit)

    def settle(self) -> None:
        """Join neighbours in shared memory, also those of different turns."""
        for group in self._groups.values():
            alive = [one for one in group if one[2] in self._found[one[1]]]
            for _, unit, turn in alive:
                self._found[unit][turn] = []
            for unit, turn, instruction in windows(alive, is_sure=False):
                self._found[unit][turn].append(instruction)

    def plan(self, counted: NvccPlan, units: list[Unit]) -> NvccPlan | None:
        """The least of an access; None where that is all that is counted."""
        over, stays = _loops_over(units[0])
        least: dict[Turn, tuple[Instruction, ...]] = {}
        for unit in units:
            for turn, found in self._found[unit].items():
                least[turn] = tuple(sorted((*least.get(turn, ()), *found)))
        every = len(least) == prod(loop.extent for loop in over)
        same = all(found == counted.made[()] for found in least.values())
        if every and same and {*stays} == {*counted.once}:
            return None
        return NvccPlan(least, tuple(loop.slot for loop in over), tuple(stays))


def _reaches(held: Unit, unit: Unit) -> bool:
    """Whether a value may be at hand: on the way here, or with no barrier in between."""
    return held.stage == unit.stage or held.branches == unit.branches[: len(held.branches)]


def _loops_over(unit: Unit) -> tuple[list[Any], list[tuple[int, int]]]:
    """Loops that nvcc may unroll around an access; those in which it stays the same, by slot."""
    over: list[Any] = []
    stays: list[tuple[int, int]] = []
    for loop in reversed(unit.loops):
        others = loop.stored.get(unit.storage, set()) - {unit.form.terms}
        if others or (loop.waits and unit.is_shared) or loop.first is None:
            break
        if not unit.form.uses(loop.variable):
            stays.append((loop.slot, loop.first))
        elif loop.extent and loop.extent * prod(one.extent for one in over) <= _MOST_TURNS:
            over.append(loop)
        else:
            break
    return over, stays
