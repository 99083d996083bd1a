"""Collects hazards: one entry for each kind, buffer and pair of places, naming the first case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NotModelled
from .memory.pending_copies import SOURCE_OVERWRITTEN, copy_into
from .races import MAX_SITES
from .report import Hazard, Site

if TYPE_CHECKING:
    from .memory.access import AccessInstruction
    from .memory.arrived_box import ArrivedBox
    from .memory.pending_copies import PendingSource
    from .model.places import Place
    from .races import UnorderedAccesses

_PLACE = 40
_INDEX_MASK = (1 << _PLACE) - 1
#: Poison that no location is to blame for.
SHUFFLED, TORN, IN_FLIGHT = 2, 3, 5
_ORIGINS = {
    SHUFFLED: "a shuffle from a thread that does not take part in it",
    TORN: "a warp-wide instruction that only a part of the warp executes",
    SOURCE_OVERWRITTEN: ("an asynchronous copy whose source was written while it was under way"),
    IN_FLIGHT: "sums of a wgmma that was not waited for",
}
#: Distinct hazards that are kept; the rest is only counted.
_CAP = 200


class Findings:
    """Hazards of one simulation."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.atomic: list[bool] = []
        self.dropped = 0
        self._hazards: dict[Any, Hazard] = {}
        self._loops: dict[Site, tuple[tuple[str, int], ...]] = {}
        self._places: list[Place] = []
        self._numbers: dict[int, int] = {}

    def of_none(self) -> Findings:
        """The same sites without any hazard, for another simulation."""
        fresh = Findings()
        fresh.sites, fresh.atomic, fresh._loops = self.sites, self.atomic, self._loops
        return fresh

    def hazards(self, redundant: bool) -> list[Hazard]:
        """Collected hazards: the redundant writes, or all others."""
        return [h for h in self._hazards.values() if (h.kind == "redundant") == redundant]

    def new_site(self, site: Site, atomic: bool) -> int:
        """Number of a site, for race tags."""
        if len(self.sites) == MAX_SITES:
            raise NotModelled(
                f"The program has more than {MAX_SITES:,} memory accesses, the most that the "
                "simulated GPU's race detector can tell apart."
            )
        self.sites.append(site)
        self.atomic.append(atomic)
        return len(self.sites) - 1

    # Poison.

    def origin(self, place: Place, index: Any) -> Any:
        """Poison codes that name elements of a buffer."""
        number = self._numbers.get(id(place))
        if number is None:
            number = self._numbers[id(place)] = len(self._places) + 1
            self._places.append(place)
        return (index & _INDEX_MASK) | number << _PLACE

    def describe(self, code: int) -> str:
        """Say where a poison code came from."""
        number = code >> _PLACE
        if not number:
            return _ORIGINS.get(code, "memory that nobody wrote")
        return f"{self._places[number - 1].name}[{code & _INDEX_MASK}] (which nobody wrote)"

    def poison_at(self, site: Site, batch: Any, codes: Any, bad: Any, what: str) -> None:
        """Report poison of the threads ``bad`` that reaches something at a site."""
        lane = int(np.argmax(bad))
        column = np.broadcast_to(codes, (*codes.shape[:-1], batch.size))[..., lane]
        code = int(np.max(column))
        thread = batch.thread_name(lane)
        message = f"a value from {self.describe(code)} {what} by {thread} at {site}."
        index, buffer, version = -1, site.buffer, None
        if code >> _PLACE:
            place = self._places[(code >> _PLACE) - 1]
            index, buffer = code & _INDEX_MASK, place.name
            version = _version(place, buffer, index)
        hazard = Hazard("poison", buffer, index, (thread,), (site,), message, version=version)
        self.add_at(("poison", buffer, site, what), hazard, int(bad.sum()), batch, lane)

    # Races.

    def not_atomic(self, access: AccessInstruction, conflict: UnorderedAccesses) -> Any:
        """Entries that are no pair of atomics, which order themselves."""
        if access.kind != "atomic" or not len(conflict):
            return np.ones(len(conflict), bool)
        return ~np.array(self.atomic)[conflict.other_site()]

    def races(
        self, access: AccessInstruction, batch: Any, found: UnorderedAccesses, verb: str
    ) -> None:
        """Report unordered accesses: what a thread does to ``{}``, and what another one did."""
        self.pairs("race", access, batch, found.where(self.not_atomic(access, found)), verb)

    def touched_pending(
        self, access: AccessInstruction, batch: Any, cells: Any, lanes: Any, touched: Any
    ) -> None:
        """Report touches of memory that an asynchronous copy is under way into."""
        where = tuple(np.argwhere(touched)[0])
        cell, lane = int(cells[where]), int(lanes[where[-1]])
        other = self.sites[int(access.memory(batch).pending[cell]) - 1]
        key = ("async", access.site, other)
        found = None if key in self._hazards else copy_into(batch, access.memory(batch), cell)
        when = _in_iteration(self._iteration(other, *found)) if found else ""
        index = _element(access, batch, cell)
        thread = batch.thread_name(lane)
        verb = "reads" if access.kind in ("load", "ldmatrix") else "writes"
        message = (
            f"{thread} {verb} {access.place.name}[{index}] at {access.site} while an asynchronous "
            f"copy into it, issued at {other}{when}, has not been waited for."
        )
        hazard = _of_access("async", access, index, (thread,), other, message)
        self.add_at(key, hazard, int(touched.sum()), batch, lane)

    def not_awaited(
        self, access: AccessInstruction, batch: Any, lane: int, box: ArrivedBox, verb: str = "reads"
    ) -> None:
        """Report a read of what TMA may still be copying."""
        message = (
            f"{batch.thread_name(lane)} {verb} {access.place.name} at {access.site}, which TMA "
            f"copies at {box.site}, with no wait at the mbarrier of that copy before."
        )
        self.by_thread("async", (access.site, box.site), message, batch, lane, key="box")

    def source_overwritten(
        self,
        access: AccessInstruction,
        batch: Any,
        cells: Any,
        lanes: Any,
        hit: Any,
        source: PendingSource,
        slots: list[Any],
    ) -> None:
        """Report writes to memory that asynchronous copies, issued with ``slots``, may yet read."""
        where = tuple(np.argwhere(hit)[0])
        cell, lane = int(cells[where]), int(lanes[where[-1]])
        reader = int(source.lanes[np.argwhere(source.cells == cell)[0][-1]])
        other = source.access.site
        index = _element(access, batch, cell)
        threads = batch.thread_name(lane), batch.thread_name(reader)
        issue = f"{other}{_in_iteration(self._iteration(other, slots, reader))}"
        message = (
            f"{threads[0]} writes {access.place.name}[{index}] at {access.site} while an "
            f"asynchronous copy from it, issued by {threads[1]} at {issue}, has not been waited "
            "for."
        )
        hazard = _of_access("async", access, index, threads, other, message)
        self.add_at(("source", access.site, other), hazard, int(hit.sum()), batch, lane)

    def pairs(
        self, kind: str, access: AccessInstruction, batch: Any, found: UnorderedAccesses, verb: str
    ) -> None:
        """Report one hazard a pair of sites."""
        for number in np.unique(found.other_site()):
            some = found.where(found.other_site() == number)
            # A tag may stand for several threads by one of them: name a case of two, if there is.
            at = int(np.argmax(some.other_lane() != some.lanes))
            lane, other = int(some.lanes[at]), self.sites[int(number)]
            index = _element(access, batch, int(some.cells[at]))
            threads = batch.thread_name(lane), _other_thread(batch, some, at)
            what = verb.format(f"{access.place.name}[{index}] at {access.site}")
            tail = " with no barrier between them" if kind == "race" else ""
            message = f"{threads[0]} {what} {threads[1]} at {other}{tail}."
            hazard = _of_access(kind, access, index, threads, other, message)
            self.add_at((kind, access.kind, access.site, other), hazard, len(some), batch, lane)

    # Places in time.

    def note_loops(self, site: Site, loops: tuple[tuple[str, int], ...]) -> None:
        """Remember the loops around a site: names and slots of their variables."""
        if site.line:
            self._loops[site] = loops

    def _iteration(self, site: Site, slots: list[Any], lane: int) -> tuple[tuple[str, int], ...]:
        """Values, for a thread, of the variables of the loops around a site."""
        values = [(name, slots[slot]) for name, slot in self._loops.get(site, ())]
        return tuple(
            (name, int(value if np.ndim(value) == 0 else value[lane]))
            for name, value in values
            if value is not None
        )

    def by_thread(
        self,
        kind: str,
        sites: tuple[Site, ...],
        message: str,
        batch: Any,
        lane: int,
        *,
        key: str,
        cases: int = 1,
    ) -> None:
        """Add what a thread does at places, to no certain element; a ``key`` tells some apart."""
        hazard = Hazard(kind, sites[0].buffer, -1, (batch.thread_name(lane),), sites, message)
        self.add_at((kind, key, *sites), hazard, cases, batch, lane)

    def add_at(self, key: Any, hazard: Hazard, cases: int, batch: Any, lane: int) -> None:
        """Add a hazard that happens now, with the iteration of its first site and the version."""
        if key in self._hazards:
            self.add(key, hazard, cases)
            return
        iteration = self._iteration(hazard.sites[0], batch.slots, lane)
        told = [f"version {hazard.version} of {hazard.buffer}"] * (hazard.version is not None)
        told += [_in_iteration(iteration)[2:]] * bool(iteration)
        message = f"{hazard.message} This is {', '.join(told)}." if told else hazard.message
        self.add(key, replace(hazard, message=message, iteration=iteration), cases)

    def add(self, key: Any, hazard: Hazard, cases: int) -> None:
        """Add a hazard, or count it with the one that has the same key."""
        known = self._hazards.get(key)
        if known is not None:
            self._hazards[key] = replace(known, count=known.count + cases)
        elif len(self._hazards) < _CAP:
            self._hazards[key] = replace(hazard, count=cases)
        else:
            self.dropped += cases


def _other_thread(batch: Any, conflict: UnorderedAccesses, at: int) -> str:
    other = int(conflict.other_lane()[at])
    if int(conflict.other_time()[at]) < batch.clocks.start:
        return "a thread of another block"
    if other == int(conflict.lanes[at]):
        return "another thread of the block"
    return str(batch.thread_name(other))


def _element(access: AccessInstruction, batch: Any, cell: int) -> int:
    """Element index in the user's view of a shadow cell."""
    storage, size = access.place.storage, access.place.dtype.itemsize
    element = cell * access.memory(batch).granule // size
    return element if storage.scope == "global" else element % (storage.span // size)


def _in_iteration(iteration: tuple[tuple[str, int], ...]) -> str:
    """Iteration as part of a sentence, after a comma; nothing outside of loops."""
    told = ", ".join(f"{name} = {value}" for name, value in iteration)
    return f", in iteration {told}" if told else ""


def _version(place: Place, name: str, index: int) -> int | None:
    """Version of a buffer that an element of a view lies in, if that is certain."""
    versions = place.storage.versions.get(name)
    return None if versions is None else versions.of(index * place.dtype.itemsize)


def _of_access(
    kind: str,
    access: AccessInstruction,
    index: int,
    threads: tuple[str, ...],
    other: Site,
    message: str,
) -> Hazard:
    """Make the hazard of an access and another one."""
    place, site = access.place, access.site
    version = _version(place, site.buffer, index)
    sites = site, other
    return Hazard(kind, place.name, index, threads, sites, message, version=version)
