"""One load, store or atomic of the program: addresses, checks, counters, data.

The index of most accesses is the sum of a part that is fixed for a gang (it depends on the thread)
and a part that is one number at a time (it depends on loop variables). The fixed part is computed
once a gang, with its bounds; and since a shift by whole words changes no count, the counters of an
access repeat as often as the shift modulo 128 bytes does, so each pattern is counted once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from .. import hardware
from ..errors import SimulationError
from .code import Code, mask_and
from .counters import Count, count_global, count_shared, instructions
from .flights import check_sources
from .memory import FRESH, Memory
from .places import Place
from .races import Conflict
from .report import Site
from .values import bits_of, to_lanes

__all__ = ["Access", "Address", "AddressCode"]

_WARP = hardware.WARP_SIZE
_PERIOD = hardware.NUM_BANKS * hardware.BANK_BYTES


@dataclass(frozen=True)
class AddressCode:
    """How to compute the index of an access.

    Attributes
    ----------
    fixed : Code
        Part that is computed once a gang.
    uniform : Code or None
        Part that is one number at a time.
    other : Code or None
        The whole index, where it has no such parts; then the others are unused.
    cache : int
        Where the gang keeps the fixed part.
    """

    fixed: Code | None
    uniform: Code | None
    other: Code | None
    cache: int


@dataclass(frozen=True)
class Address:
    """Where the threads of a gang access memory.

    Attributes
    ----------
    flat : array of int
        First element of each thread in the memory's view; ``[threads]``, or ``[n, threads]`` for
        a vector whose elements do not lie together.
    mask : array of bool or None
        Threads that take part.
    phase : int or None
        Uniform part in bytes, modulo 128, if the rest is fixed for the gang.
    """

    flat: Any
    mask: Any
    phase: int | None


@dataclass
class Access:
    """A memory access of the program.

    Attributes
    ----------
    number : int
        Number of its site in race tags.
    site : Site
        For reports.
    place : Place
        Buffer.
    kind : str
        ``load``, ``store``, ``atomic``, ``cp.async`` (its write), ``ldmatrix`` or ``stmatrix``.
    address : AddressCode
        Its index.
    lanes : int
        Elements a thread moves.
    together : bool
        True if these lie one after the other and move in as few instructions as possible; false
        if each is an instruction of its own.
    """

    number: int
    site: Site
    place: Place
    kind: str
    address: AddressCode
    lanes: int
    together: bool
    count: Count = field(default_factory=Count)
    _memo: dict[Any, tuple[Any, Any, Count]] = field(default_factory=dict)

    @property
    def width(self) -> int:
        """Bytes a thread moves in one instruction."""
        size = self.place.dtype.itemsize
        return instructions(self.lanes * size)[0][1] if self.together else size

    # Addresses.

    def locate(self, s: Any, mask: Any) -> Address | None:
        """Compute and check the address; None if no thread is left that has a legal one."""
        if self.address.other is not None:
            return self._locate_any(s, mask)
        gang = s.gang
        fixed = gang.cache[self.address.cache]
        if fixed is None:
            fixed = gang.cache[self.address.cache] = self._fixed(s)
        base, low, high, _ = fixed
        uniform = self.address.uniform
        shift = int(uniform.run(s, mask)) if uniform is not None else 0
        last = high + shift + (self.lanes if self.together else 1)
        flat = base + shift if shift else base
        if low + shift < 0 or last > self._extent(gang):
            flat, mask = self._confine(gang, flat, mask)
        self._check_alignment(gang, flat, mask)
        return Address(flat, mask, shift * self.place.dtype.itemsize % _PERIOD)

    def _extent(self, gang: Any) -> int:
        """Elements that one block may address."""
        memory = gang.memories[self.place.storage.number]
        return int(memory.span // self.place.dtype.itemsize)

    def _block_base(self, gang: Any) -> Any:
        """First element of each thread's own block, or 0 for global memory."""
        storage = self.place.storage
        if storage.scope == "global":
            return 0
        return gang.block_of * (storage.span // self.place.dtype.itemsize)

    def _fixed(self, s: Any) -> tuple[Any, int, int, int]:
        assert self.address.fixed is not None
        gang = s.gang
        index = np.asarray(self.address.fixed.run(s, None)).astype(np.int64)
        index = np.broadcast_to(index, (*index.shape[:-1], gang.size))
        live = index if gang.full is None else index[..., gang.full]
        return index + self._block_base(gang), int(live.min()), int(live.max()), 0

    def _locate_any(self, s: Any, mask: Any) -> Address | None:
        gang = s.gang
        assert self.address.other is not None
        index, poison = self.address.other.pair(s, mask)
        if poison is not None:
            bad = _any_element(poison != 0) & gang.active(mask)
            if bad.any():
                gang.launch.findings.poison(self, gang, poison, bad, "is used as an address")
                mask = mask_and(mask, ~bad)
                if not mask.any():
                    return None
        flat = np.asarray(index).astype(np.int64)
        flat = np.broadcast_to(flat, (*flat.shape[:-1], gang.size)) + self._block_base(gang)
        flat, mask = self._confine(gang, flat, mask)
        self._check_alignment(gang, flat, mask)
        return Address(flat, mask, None)

    def _confine(self, gang: Any, flat: Any, mask: Any) -> tuple[Any, Any]:
        """Raise if an active thread is out of bounds; park the idle ones at element 0."""
        base = self._block_base(gang)
        index = flat - base
        width = self.lanes if self.together else 1
        outside = (index < 0) | (index + width > self._extent(gang))
        if not outside.any():
            return flat, mask
        active = gang.active(mask if mask is not None else gang.full)
        bad = np.argwhere(outside & active)
        if len(bad):
            self._raise_outside(gang, index, tuple(bad[0]), len(bad))
        return np.where(outside, base, flat), mask

    def _raise_outside(self, gang: Any, index: Any, where: tuple[int, ...], cases: int) -> None:
        extent = self._extent(gang)
        lanes = f" of {self.lanes} elements" if self.together and self.lanes > 1 else ""
        raise SimulationError(
            f"Out of bounds: {gang.thread_name(int(where[-1]))} makes a {self.kind}{lanes} "
            f"at index {int(index[where])} of {self.place.name}, which has shape ({extent},), at "
            f"{self.site} ({cases:,} such accesses in this instruction)."
        )

    def _check_alignment(self, gang: Any, flat: Any, mask: Any) -> None:
        if not self.together or self.lanes == 1:
            return
        unit = self.width // self.place.dtype.itemsize
        size, base = self.place.dtype.itemsize, self._low_address(gang)
        crooked = (flat + base // size) % unit != 0
        if not crooked.any():
            return
        bad = np.flatnonzero(crooked & gang.active(mask if mask is not None else gang.full))
        if len(bad):
            index = int((flat - self._block_base(gang))[bad[0]])
            raise SimulationError(
                f"Misaligned address: {gang.thread_name(int(bad[0]))} makes a {self.width}-byte "
                f"{self.kind} at index {index} of {self.place.name}, whose byte address "
                f"{base + index * size} is no multiple of {self.width}, at {self.site}."
            )

    def _low_address(self, gang: Any) -> int:
        """Low bits of the address at which the memory begins."""
        storage = self.place.storage
        return gang.memories[storage.number].base if storage.scope == "global" else 0

    # Counters.

    def tally(self, gang: Any, address: Address) -> None:
        """Add the access to the counts of its site."""
        self.tally_by(gang, [address], lambda: self._count(gang, address))

    def tally_by(self, gang: Any, addresses: Sequence[Address], count: Callable[[], Count]) -> None:
        """Add what ``count`` finds, once for all accesses of the same masks and phases."""
        if any(address.phase is None for address in addresses):
            self.count += count()
            return
        masks = [address.mask for address in addresses]
        key = tuple((id(address.mask), address.phase) for address in addresses)
        known = self._memo.get(key)
        if known is None or known[0] is not gang or any(map(operator.is_not, known[1], masks)):
            if known is not None and known[0] is not gang:
                self._memo.clear()
            known = self._memo[key] = gang, masks, count()
        self.count += known[2]

    def byte_addresses(self, gang: Any, address: Address) -> tuple[Any, Any]:
        """Addresses of a contiguous access and active threads, ``[warps, 32]`` each."""
        mask = address.mask if address.mask is not None else gang.full
        at = address.flat * self.place.dtype.itemsize + self._low_address(gang)
        return np.reshape(at, (-1, _WARP)), gang.active(mask).reshape(-1, _WARP)

    def _count(self, gang: Any, address: Address) -> Count:
        mask = address.mask if address.mask is not None else gang.full
        active = gang.active(mask).reshape(-1, _WARP)
        size = self.place.dtype.itemsize
        counter: Callable[..., Count] = count_global
        if self.place.storage.scope != "global":
            counter = partial(count_shared, store=self.kind != "load")
        total = Count()
        base = self._low_address(gang)
        for flat, start, width in self._instructions(address.flat):
            total += counter((flat * size + (base + start)).reshape(-1, _WARP), active, width)
        return total

    def _instructions(self, flat: Any) -> list[tuple[Any, int, int]]:
        """Each instruction as addresses, byte offset and width."""
        size = self.place.dtype.itemsize
        if self.together:
            return [(flat, start, width) for start, width in instructions(self.lanes * size)]
        rows = flat if flat.ndim == 2 else flat[None]
        return [(row, 0, size) for row in rows]

    # Data.

    def elements(self, flat: Any) -> Any:
        """Element numbers of a thread's whole access."""
        if self.together and self.lanes > 1:
            return flat + np.arange(self.lanes)[:, None]
        return flat

    def cells(self, memory: Memory, elements: Any) -> Any:
        """Shadow cells of elements, on a new first axis if an element covers several."""
        ratio = self.place.dtype.itemsize // memory.granule
        if ratio == 1:
            return elements
        return (elements * ratio) + np.arange(ratio).reshape(-1, *[1] * elements.ndim)

    def load(self, s: Any, mask: Any) -> tuple[Any, Any]:
        """Read: the values and their poison."""
        address = self.locate(s, mask)
        if address is None:
            return self.place.dtype.type(0), None
        return self.load_at(s, address)

    def load_at(self, s: Any, address: Address) -> tuple[Any, Any]:
        """Read at an address that was checked."""
        gang = s.gang
        memory = gang.memories[self.place.storage.number]
        self.tally(gang, address)
        elements = self.elements(address.flat)
        value = memory.view(self.place.dtype).take(elements, mode="clip")
        if memory.shadow is None and memory.poison is None:
            return value, None
        return value, self._check_read(gang, memory, elements, address.mask)

    def _check_read(self, gang: Any, memory: Memory, elements: Any, mask: Any) -> Any:
        """Check a read for races and copies under way; return its poison."""
        cells = self.cells(memory, elements)
        codes = None
        shadow = memory.shadow
        if shadow is not None:
            tags = shadow.writes.take(cells)
            if tags.max() >= shadow.threshold(gang.clocks):
                self._report_read(gang, memory, cells, mask)
            own, lanes = self._chosen(gang, cells, mask)
            shadow.log_read(own, lanes, self.number, gang.clocks)
            if memory.scope != "global" and tags.min() == 0:
                codes = np.where(tags == 0, FRESH, 0)
        if memory.poison is not None:
            stored = memory.poison.take(cells)
            if stored.any():
                codes = stored if codes is None else np.maximum(codes, stored)
        if memory.flying is not None:
            codes = self._check_flying(gang, memory, cells, mask, codes)
        return None if codes is None else self._named(gang, memory, codes, elements)

    def _chosen(self, gang: Any, cells: Any, mask: Any) -> tuple[Any, Any]:
        """Cells of active threads, and the threads."""
        mask = mask if mask is not None else gang.full
        if mask is None:
            return cells, gang.lane
        chosen = np.flatnonzero(mask)
        return cells[..., chosen], chosen

    def _flat(self, gang: Any, cells: Any, mask: Any) -> tuple[Any, Any]:
        own, lanes = self._chosen(gang, cells, mask)
        return own.ravel(), np.broadcast_to(lanes, own.shape).ravel()

    def _report_read(self, gang: Any, memory: Memory, cells: Any, mask: Any) -> None:
        assert memory.shadow is not None
        conflict = memory.shadow.check_read(*self._flat(gang, cells, mask), gang.clocks)
        gang.launch.findings.races(self, gang, memory, conflict, "reads")

    def _check_flying(self, gang: Any, memory: Memory, cells: Any, mask: Any, codes: Any) -> Any:
        """Report a touch of memory that a copy is under way into; what is read is poison."""
        flying = memory.flying.take(cells)
        active = gang.active(mask if mask is not None else gang.full)
        touched = (flying != 0) & active
        if not touched.any():
            return codes
        gang.launch.findings.flying(self, gang, memory, cells, touched, flying)
        codes = np.zeros(cells.shape, np.int64) if codes is None else codes
        return np.where(flying != 0, FRESH, codes)

    def _named(self, gang: Any, memory: Memory, codes: Any, elements: Any) -> Any:
        """Poison codes with fresh ones replaced by the location's, one an element."""
        if codes.ndim > elements.ndim:
            codes = codes.max(axis=0)
        index = elements - self._block_base(gang)
        origin = gang.launch.findings.origin(self.place, index)
        named = np.where(codes == FRESH, origin, codes)
        return named if named.any() else None

    def store(self, s: Any, mask: Any, value: Any, poison: Any) -> None:
        """Write values, given their poison."""
        gang = s.gang
        address = self.locate(s, mask)
        if address is None:
            return
        self.tally(gang, address)
        self.put(gang, address.flat, address.mask, value, poison)

    def put(self, gang: Any, flat: Any, mask: Any, value: Any, poison: Any) -> None:
        """Write values at addresses, with all checks but no counting."""
        memory = gang.memories[self.place.storage.number]
        mask = mask if mask is not None else gang.full
        elements = self.elements(flat)
        whole = to_lanes(value, self.lanes, gang.size)
        if poison is not None:
            poison = to_lanes(poison, self.lanes, gang.size)
            self._report_stored_poison(gang, poison, mask)
        if mask is not None:
            chosen = np.flatnonzero(mask)
            elements, whole = elements[..., chosen], whole[..., chosen]
            poison = None if poison is None else poison[..., chosen]
        lanes = gang.lane if mask is None else chosen
        self.write(gang, memory, elements, lanes, whole, poison)

    def _report_stored_poison(self, gang: Any, poison: Any, mask: Any) -> None:
        if self.place.storage.scope != "global":
            return
        bad = _any_element(poison != 0) & gang.active(mask)
        if bad.any():
            gang.launch.findings.poison(self, gang, poison, bad, "is stored to global memory")

    def write(
        self, gang: Any, memory: Memory, elements: Any, lanes: Any, value: Any, poison: Any
    ) -> None:
        """Write elements of the given threads (arrays without idle threads)."""
        view = memory.view(self.place.dtype)
        cells = self.cells(memory, elements)
        if memory.shadow is None:
            view[elements] = value
        else:
            self._write_tracked(gang, memory, view, elements, cells, lanes, value)
        if poison is not None or memory.poison is not None:
            spread = None if poison is None else np.broadcast_to(poison, cells.shape)
            memory.set_poison(cells, spread)

    def _write_tracked(
        self,
        gang: Any,
        memory: Memory,
        view: Any,
        elements: Any,
        cells: Any,
        lanes: Any,
        value: Any,
    ) -> None:
        shadow, clocks = memory.shadow, gang.clocks
        assert shadow is not None
        every = np.broadcast_to(lanes, cells.shape)
        old = shadow.writes.take(cells)
        hot = old.size and old.max() >= shadow.threshold(clocks)
        if hot or shadow.read_recently():
            flat_cells, flat_lanes = cells.ravel(), every.ravel()
            writes, reads = shadow.check_write(flat_cells, flat_lanes, clocks)
            gang.launch.findings.races(self, gang, memory, reads, "writes", read=True)
            equal = self._equal(view, elements, value, writes.at)
            view[elements] = value
            shadow.writes[cells] = shadow.tag(every, self.number, clocks)
            self._settle(gang, memory, writes, equal)
        else:
            view[elements] = value
            shadow.writes[cells] = shadow.tag(every, self.number, clocks)
        if memory.flying is not None:
            self._check_flying_write(gang, memory, cells, lanes)
        if gang.flights and memory.scope == "global":
            check_sources(self, gang, memory, cells, lanes)
        self._settle_rivals(gang, memory, view, elements, cells, every, value)

    def _equal(self, view: Any, elements: Any, value: Any, at: Any) -> Any:
        """Whether memory holds the bits that are written, at positions of the flat cells."""
        if self.kind == "atomic":
            return np.zeros(len(at), bool)
        element = at % max(elements.size, 1)
        there = view[elements.ravel()[element]]
        new = np.broadcast_to(value, elements.shape).ravel()[element]
        return bits_of(there) == bits_of(new)

    def _settle(self, gang: Any, memory: Memory, conflict: Conflict, equal: Any) -> None:
        """Report conflicting writes: races, or redundant where the bits are the same."""
        findings = gang.launch.findings
        if not len(conflict):
            return
        keep = findings.not_atomic(self, conflict)
        conflict, equal = conflict.where(keep), equal[keep]
        findings.races(self, gang, memory, conflict.where(~equal), "writes")
        same = conflict.where(equal)
        if len(same):
            findings.redundant(self, gang, memory, same)
            assert memory.shadow is not None
            memory.shadow.mark_copies(same, self.number, gang.clocks)

    def _settle_rivals(
        self,
        gang: Any,
        memory: Memory,
        view: Any,
        elements: Any,
        cells: Any,
        lanes: Any,
        value: Any,
    ) -> None:
        """Report threads of one instruction that write the same location."""
        shadow = memory.shadow
        assert shadow is not None
        if self.kind == "atomic":
            return
        fresh = shadow.tag(lanes, self.number, gang.clocks)
        if ((shadow.writes.take(cells) ^ fresh) & (1 << 18) - 1 == 0).all():
            return
        lost = shadow.rivals(cells.ravel(), lanes.ravel(), fresh.ravel())
        self._settle(gang, memory, lost, self._equal(view, elements, value, lost.at))

    def check_issue(self, gang: Any, memory: Memory, cells: Any, lanes: Any) -> None:
        """Report what is not ordered before a copy into cells that starts now."""
        shadow = memory.shadow
        assert shadow is not None
        self._check_flying_write(gang, memory, cells, lanes)
        flat = cells.ravel(), np.broadcast_to(lanes, cells.shape).ravel()
        writes, reads = shadow.check_write(*flat, gang.clocks)
        gang.launch.findings.races(self, gang, memory, writes, "copies to")
        gang.launch.findings.races(self, gang, memory, reads, "copies to", read=True)

    def _check_flying_write(self, gang: Any, memory: Memory, cells: Any, lanes: Any) -> None:
        flying = memory.flying.take(cells)
        if not flying.any():
            return
        everywhere = np.zeros((*cells.shape[:-1], gang.size), np.int64)
        where = np.zeros_like(everywhere)
        everywhere[..., lanes], where[..., lanes] = flying, cells
        gang.launch.findings.flying(self, gang, memory, where, everywhere != 0, everywhere)


def _any_element(flags: Any) -> Any:
    """Fold a vector's elements: true for a thread if any element is."""
    return flags.any(axis=0) if flags.ndim == 2 else flags
