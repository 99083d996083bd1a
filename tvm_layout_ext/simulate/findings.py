"""Collects hazards: one entry for each kind, buffer and pair of places, naming the first case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NotModelled
from .races import MAX_SITES
from .report import Hazard, Site

if TYPE_CHECKING:
    from .access import Access
    from .memory import Memory
    from .places import Place
    from .races import Conflict

__all__ = ["SHUFFLED", "TORN", "Findings"]

_PLACE = 40
_INDEX_MASK = (1 << _PLACE) - 1
#: Poison of a shuffle that reads a thread that does not take part.
SHUFFLED = 2
#: Poison of a warp-wide instruction that only a part of a warp executes.
TORN = 3
#: Distinct hazards that are kept; the rest is only counted.
_CAP = 200


class Findings:
    """Hazards of one simulation."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.atomic: list[bool] = []
        self.dropped = 0
        self._hazards: dict[Any, Hazard] = {}
        self._places: list[str] = []
        self._numbers: dict[int, int] = {}

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
            self._places.append(place.name)
        return (index & _INDEX_MASK) | number << _PLACE

    def describe(self, code: int) -> str:
        """Say where a poison code came from."""
        if code == SHUFFLED:
            return "a shuffle from a thread that does not take part in it"
        if code == TORN:
            return "a warp-wide instruction that only a part of the warp executes"
        number = code >> _PLACE
        if not number:
            return "memory that nobody wrote"
        return f"{self._places[number - 1]}[{code & _INDEX_MASK}] (which nobody wrote)"

    def poison(self, access: Access, gang: Any, codes: Any, bad: Any, what: str) -> None:
        """Report poison that reaches an address or a store of an access."""
        self.poison_at(access.site, gang, codes, bad, what)

    def poison_at(self, site: Site, gang: Any, codes: Any, bad: Any, what: str) -> None:
        """Report poison of the threads ``bad`` that reaches something at a site."""
        lane = int(np.argmax(bad))
        column = np.broadcast_to(codes, (*codes.shape[:-1], gang.size))[..., lane]
        code = int(np.max(column))
        thread = gang.thread_name(lane)
        message = f"a value from {self.describe(code)} {what} by {thread} at {site}."
        index = code & _INDEX_MASK if code >> _PLACE else -1
        buffer = self._places[(code >> _PLACE) - 1] if code >> _PLACE else site.buffer
        key = ("poison", buffer, site, what)
        self.add(key, Hazard("poison", buffer, index, (thread,), (site,), message), int(bad.sum()))

    # Races.

    def not_atomic(self, access: Access, conflict: Conflict) -> Any:
        """Entries that are no pair of atomics, which order themselves."""
        if access.kind != "atomic" or not len(conflict):
            return np.ones(len(conflict), bool)
        return ~np.array(self.atomic)[conflict.other_site()]

    def races(
        self,
        access: Access,
        gang: Any,
        memory: Memory,
        conflict: Conflict,
        verb: str,
        read: bool = False,
    ) -> None:
        """Report unordered accesses, one hazard a pair of sites."""
        conflict = conflict.where(self.not_atomic(access, conflict))
        past = "read" if read else "written"
        for other in np.unique(conflict.other_site()) if len(conflict) else ():
            some = conflict.where(conflict.other_site() == other)
            self._pair("race", access, gang, memory, some, f"{verb} {{}}, {past} by", int(other))

    def redundant(self, access: Access, gang: Any, memory: Memory, conflict: Conflict) -> None:
        """Report threads that write what another thread wrote, bit for bit."""
        for other in np.unique(conflict.other_site()):
            some = conflict.where(conflict.other_site() == other)
            verb = "writes to {} the same bits as"
            self._pair("redundant", access, gang, memory, some, verb, int(other))

    def flying(
        self, access: Access, gang: Any, memory: Memory, cells: Any, touched: Any, flying: Any
    ) -> None:
        """Report touches of memory that an asynchronous copy is under way into."""
        where = tuple(np.argwhere(touched)[0])
        other = self.sites[int(flying[where]) - 1]
        index = _element(access, gang, memory, int(cells[where]), int(where[-1]))
        thread = gang.thread_name(int(where[-1]))
        verb = "reads" if access.kind in ("load", "ldmatrix") else "writes"
        message = (
            f"{thread} {verb} {access.place.name}[{index}] at {access.site} while an asynchronous "
            f"copy into it, issued at {other}, has not been waited for."
        )
        hazard = Hazard("async", access.place.name, index, (thread,), (access.site, other), message)
        self.add(("async", access.site, other), hazard, int(touched.sum()))

    def _pair(
        self,
        kind: str,
        access: Access,
        gang: Any,
        memory: Memory,
        conflict: Conflict,
        verb: str,
        other: int,
    ) -> None:
        # A tag may stand for several threads by one of them: name a case of two, if there is one.
        at = int(np.argmax(conflict.other_lane() != conflict.lanes))
        lane = int(conflict.lanes[at])
        index = _element(access, gang, memory, int(conflict.cells[at]), lane)
        mine = gang.thread_name(lane)
        theirs = _other_thread(gang, conflict, at)
        sites = (access.site, self.sites[other])
        what = verb.format(f"{access.place.name}[{index}] at {access.site}")
        tail = " with no barrier between them" if kind == "race" else ""
        message = f"{mine} {what} {theirs} at {sites[1]}{tail}."
        hazard = Hazard(kind, access.place.name, index, (mine, theirs), sites, message)
        self.add((kind, access.kind, *sites), hazard, len(conflict))

    def add(self, key: Any, hazard: Hazard, cases: int) -> None:
        """Add a hazard, or count it with the one that has the same key."""
        known = self._hazards.get(key)
        if known is not None:
            self._hazards[key] = replace(known, count=known.count + cases)
        elif len(self._hazards) < _CAP:
            self._hazards[key] = replace(hazard, count=cases)
        else:
            self.dropped += cases


def _other_thread(gang: Any, conflict: Conflict, at: int) -> str:
    other = int(conflict.other_lane()[at])
    if int(conflict.other_time()[at]) < gang.clocks.start:
        return "a thread of another block"
    if other == int(conflict.lanes[at]):
        return "another thread of the block"
    return str(gang.thread_name(other))


def _element(access: Access, gang: Any, memory: Memory, cell: int, lane: int) -> int:
    """Element index in the user's view of a shadow cell."""
    element = cell * memory.granule // access.place.dtype.itemsize
    if memory.scope == "global":
        return element
    storage = access.place.storage
    return element - int(gang.block_of[lane]) * (storage.span // access.place.dtype.itemsize)
