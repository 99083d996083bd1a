"""``cp.async``: copies from global to shared memory that are visible only after their wait.

The source is read when the copy is issued. Until the issuing thread waits for the copy's group,
the destination is *flying*: whoever touches it is reported and reads poison. At the wait the bytes
are written on behalf of the issuing thread; others still need a barrier after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .access import Access
from .code import Code, Run, mask_and

__all__ = ["commit", "copy", "wait"]


@dataclass
class _Flight:
    """A copy under way.

    Attributes
    ----------
    access : Access
        Its store side.
    lanes : array of int
        Threads that issued it.
    elements : array of int
        Destination, ``[n, threads]``.
    value, poison : array
        What they will hold.
    group : array of int
        Number of each thread's group that it belongs to.
    """

    access: Access
    lanes: Any
    elements: Any
    value: Any
    poison: Any
    group: Any

    def keep(self, chosen: Any) -> _Flight:
        """Part of it that the chosen threads (bool each) issued."""
        poison = None if self.poison is None else self.poison[..., chosen]
        return _Flight(
            self.access,
            self.lanes[chosen],
            self.elements[..., chosen],
            self.value[..., chosen],
            poison,
            self.group[chosen],
        )


def _groups(gang: Any) -> Any:
    """How many groups each thread has committed."""
    if gang.groups is None:
        gang.groups = np.zeros(gang.size, np.int64)
    return gang.groups


def copy(load: Access, store: Access, predicate: Code | None) -> Run:
    """Compile a copy; where the predicate is false, zeros are stored at once."""

    def run(s: Any, m: Any) -> None:
        if predicate is None:
            _issue(s, m, load, store)
            return
        wanted = np.broadcast_to(predicate.value(s, m), (s.gang.size,)) != 0
        _issue(s, mask_and(m, wanted), load, store)
        zeros = store.place.dtype.type(0)
        store.store(s, mask_and(m if m is not None else s.gang.full, ~wanted), zeros, None)

    return run


def _issue(s: Any, m: Any, load: Access, store: Access) -> None:
    gang = s.gang
    if m is not None and not m.any():
        return
    value, poison = load.load(s, m)
    address = store.locate(s, m)
    if address is None:
        return
    store.tally(gang, address)
    memory = gang.memories[store.place.storage.number]
    mask = address.mask if address.mask is not None else gang.full
    lanes = gang.lane if mask is None else np.flatnonzero(mask)
    elements = store.elements(address.flat)[..., lanes]
    moved = _retyped(value, load.place.dtype, store.place.dtype)[..., lanes]
    cells = store.cells(memory, elements)
    if memory.flying is None:
        memory.flying = np.zeros(memory.cells, np.int64)
    store.check_issue(gang, memory, cells, lanes)
    memory.flying[cells] = store.number + 1
    codes = None if poison is None else np.broadcast_to(poison, value.shape)[..., lanes]
    if codes is not None and codes.shape != moved.shape:
        codes = np.broadcast_to(codes.max(axis=0) if codes.ndim > 1 else codes, moved.shape)
    gang.flights.append(_Flight(store, lanes, elements, moved, codes, _groups(gang)[lanes]))


def _retyped(value: Any, source: np.dtype[Any], target: np.dtype[Any]) -> Any:
    """Bits of a vector ``[n, threads]`` as elements of another type."""
    if source == target:
        return value
    rows = np.ascontiguousarray(np.atleast_2d(value).T)
    return rows.view(target).T


def commit() -> Run:
    """Compile ``cp.async.commit_group``."""

    def run(s: Any, m: Any) -> None:
        groups = _groups(s.gang)
        if m is None:
            groups += 1
        else:
            groups[m] += 1

    return run


def wait(pending: Code) -> Run:
    """Compile ``cp.async.wait_group n``: all but the last ``n`` groups of a thread are complete."""

    def run(s: Any, m: Any) -> None:
        gang = s.gang
        done = _groups(gang) - int(pending.run(s, m))
        left = []
        for flight in gang.flights:
            landed = flight.group < done[flight.lanes]
            if m is not None:
                landed &= m[flight.lanes]
            if not landed.any():
                left.append(flight)
                continue
            _land(gang, flight if landed.all() else flight.keep(landed))
            if not landed.all():
                left.append(flight.keep(~landed))
        gang.flights = left

    return run


def _land(gang: Any, flight: _Flight) -> None:
    access = flight.access
    memory = gang.memories[access.place.storage.number]
    memory.flying[access.cells(memory, flight.elements)] = 0
    access.write(gang, memory, flight.elements, flight.lanes, flight.value, flight.poison)
