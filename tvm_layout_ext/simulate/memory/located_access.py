"""Where one load, store or atomic of the program goes, and what its instructions cost.

The index of most accesses is the sum of a part that is fixed for a batch (it depends on the thread)
and a part that is one number at a time (it depends on loop variables). The fixed part is computed
once a batch, with its bounds; and since a shift by whole words changes no count, the counters of an
access repeat as often as the shift modulo 128 bytes does, so each pattern is counted once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ...errors import SimulationError
from ...gpu import hardware
from ...gpu.counts import Count, count_global, count_shared, instructions
from ..model.code import Code, mask_and
from ..model.places import Place
from ..report import Site
from .memory import Memory

_WARP = hardware.WARP_SIZE
_PERIOD = hardware.LINE_BYTES


#: Row of the address, bytes after it, and width of one instruction.
Instruction = tuple[int, int, int]


@dataclass
class NvccPlan:
    """Instructions that nvcc makes of an access, by the turn of the loops at ``slots``.

    ``once`` has slots of loops before which they are made, with the first value of each.
    """

    made: dict[tuple[int, ...], tuple[Instruction, ...]]
    slots: tuple[int, ...] = ()
    once: tuple[tuple[int, int], ...] = ()

    def at(self, s: Any) -> tuple[Instruction, ...]:
        """Those of this turn."""
        if not all(np.all(s.slots[slot] == first) for slot, first in self.once):
            return ()
        return self.made.get(tuple(int(s.slots[slot]) for slot in self.slots), ())


@dataclass(frozen=True)
class AddressCode:
    """The index of an access: a fixed and a uniform part, or, where it has none, ``other``."""

    fixed: Code | None
    uniform: Code | None
    other: Code | None
    cache: int


@dataclass(frozen=True)
class Address:
    """Where the threads of a batch access memory: the first element of each.

    ``flat`` is ``[n, threads]`` for a vector whose elements do not lie together. ``phase`` is the
    uniform part in bytes, modulo 128, if the rest is fixed for the batch.
    """

    flat: Any
    mask: Any
    phase: int | None


@dataclass
class LocatedAccess:
    """A memory access of the program: its address, bounds, alignment and counters.

    Its ``lanes`` elements lie together and move in as few instructions as possible, or each is an
    instruction of its own. :class:`.access.AccessInstruction` moves the data.
    """

    number: int
    site: Site
    place: Place
    kind: str
    address: AddressCode
    lanes: int
    together: bool
    count: Count = field(default_factory=Count)
    certain: Count = field(default_factory=Count)
    width: int = field(init=False)  #: Bytes a thread moves in one instruction
    #: What is counted: all of its instructions, until nvcc leaves some out.
    plan: NvccPlan = field(init=False)
    #: What of them is made whatever nvcc does; None for all.
    least: NvccPlan | None = None
    _memo: dict[Any, tuple[Any, Any, Count]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.place.dtype.itemsize
        made: list[Instruction] = [(lane, 0, size) for lane in range(self.lanes)]
        if self.together:
            made = [(0, *one) for one in instructions(self.lanes * size)]
        self.width, self.plan = made[0][2], NvccPlan({(): tuple(made)})

    def reset(self) -> None:
        """Count from zero again."""
        self.count, self.certain = Count(), Count()
        self._memo.clear()

    def memory(self, batch: Any) -> Memory:
        """The memory that it is in."""
        found: Memory = batch.memories[self.place.storage.number]
        return found

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

    def locate(self, s: Any, mask: Any) -> Address | None:
        """Compute and check the address; None if no thread is left that has a legal one."""
        if self.address.other is not None:
            return self._locate_any(s, mask)
        batch = s.batch
        fixed = batch.cache[self.address.cache]
        if fixed is None:
            fixed = batch.cache[self.address.cache] = self._fixed(s)
        base, low, high = fixed
        uniform = self.address.uniform
        shift = int(uniform.run(s, mask)) if uniform is not None else 0
        last = high + shift + (self.lanes if self.together else 1)
        flat = base + shift if shift else base
        if low + shift < 0 or last > self._extent(batch):
            flat, mask = self._confine(batch, flat, mask)
        self._check_alignment(batch, flat, mask)
        return Address(flat, mask, shift * self.place.dtype.itemsize % _PERIOD)

    def _extent(self, batch: Any) -> int:
        """Elements that one block may address."""
        return self.memory(batch).span // self.place.dtype.itemsize

    def _block_base(self, batch: Any) -> Any:
        """First element of each thread's own block, or 0 for global memory."""
        storage = self.place.storage
        if storage.scope == "global":
            return 0
        return batch.block_of * (storage.span // self.place.dtype.itemsize)

    def _fixed(self, s: Any) -> tuple[Any, int, int]:
        assert self.address.fixed is not None
        batch = s.batch
        index = np.asarray(self.address.fixed.run(s, None)).astype(np.int64)
        index = np.broadcast_to(index, (*index.shape[:-1], batch.size))
        live = index if batch.full is None else index[..., batch.full]
        return index + self._block_base(batch), int(live.min()), int(live.max())

    def _locate_any(self, s: Any, mask: Any) -> Address | None:
        batch = s.batch
        assert self.address.other is not None
        index, poison = self.address.other.pair(s, mask)
        if poison is not None:
            bad = batch.poisoned(self.site, mask, poison, "is used as an address")
            mask = mask if bad is None else mask_and(mask, ~bad)
            if bad is not None and not mask.any():
                return None
        flat = np.asarray(index).astype(np.int64)
        flat = np.broadcast_to(flat, (*flat.shape[:-1], batch.size)) + self._block_base(batch)
        flat, mask = self._confine(batch, flat, mask)
        self._check_alignment(batch, flat, mask)
        return Address(flat, mask, None)

    def _confine(self, batch: Any, flat: Any, mask: Any) -> tuple[Any, Any]:
        """Raise if an active thread is out of bounds; park the idle ones at element 0."""
        base = self._block_base(batch)
        index = flat - base
        width = self.lanes if self.together else 1
        outside = (index < 0) | (index + width > self._extent(batch))
        if not outside.any():
            return flat, mask
        active = batch.active(mask)
        bad = np.argwhere(outside & active)
        if len(bad):
            self._raise_outside(batch, index, tuple(bad[0]), len(bad))
        return np.where(outside, base, flat), mask

    def _raise_outside(self, batch: Any, index: Any, where: tuple[int, ...], cases: int) -> None:
        extent = self._extent(batch)
        lanes = f" of {self.lanes} elements" if self.together and self.lanes > 1 else ""
        raise SimulationError(
            f"Out of bounds: {batch.thread_name(int(where[-1]))} makes a {self.kind}{lanes} "
            f"at index {int(index[where])} of {self.place.name}, which has shape ({extent},), at "
            f"{self.site} ({cases:,} such accesses in this instruction)."
        )

    def _check_alignment(self, batch: Any, flat: Any, mask: Any) -> None:
        if not self.together or self.lanes == 1:
            return
        unit = self.width // self.place.dtype.itemsize
        size, base = self.place.dtype.itemsize, self._low_address(batch)
        crooked = (flat + base // size) % unit != 0
        if not crooked.any():
            return
        bad = np.flatnonzero(crooked & batch.active(mask))
        if len(bad):
            index = int((flat - self._block_base(batch))[bad[0]])
            raise SimulationError(
                f"Misaligned address: {batch.thread_name(int(bad[0]))} makes a {self.width}-byte "
                f"{self.kind} at index {index} of {self.place.name}, whose byte address "
                f"{base + index * size} is no multiple of {self.width}, at {self.site}."
            )

    def _low_address(self, batch: Any) -> int:
        """Low bits of the address at which the memory begins."""
        return self.memory(batch).base if self.place.storage.scope == "global" else 0

    # Counters.

    @property
    def made(self) -> int:
        """Bytes of the widest instruction that nvcc makes of it; 0 where another's does it all."""
        return max((width for _, _, width in self.plan.made[()]), default=0)

    @property
    def counts(self) -> tuple[Count, Count]:
        """What is counted, and what of it nvcc cannot do without."""
        return self.count, self.count if self.least is None else self.certain

    def tally(self, s: Any, address: Address) -> None:
        """Add the access to the counts of its site."""
        if made := self.plan.at(s):
            self.count += self._counted(s.batch, address, made)
        if self.least is not None and (made := self.least.at(s)):
            self.certain += self._counted(s.batch, address, made)

    def _counted(self, batch: Any, address: Address, made: tuple[Instruction, ...]) -> Count:
        return self._known(batch, [address], made, lambda: self._count(batch, address, made))

    def tally_by(
        self, batch: Any, addresses: Sequence[Address], count: Callable[[], Count]
    ) -> None:
        """Add what ``count`` finds, once for all accesses of the same masks and phases."""
        self.count += self._known(batch, addresses, (), count)

    def _known(
        self, batch: Any, addresses: Sequence[Address], made: Any, count: Callable[[], Count]
    ) -> Count:
        if any(address.phase is None for address in addresses):
            return count()
        masks = [address.mask for address in addresses]
        key = made, *((id(address.mask), address.phase) for address in addresses)
        known = self._memo.get(key)
        if known is None or known[0] is not batch or any(map(operator.is_not, known[1], masks)):
            if known is not None and known[0] is not batch:
                self._memo.clear()
            known = self._memo[key] = batch, masks, count()
        return known[2]

    def byte_addresses(self, batch: Any, address: Address) -> tuple[Any, Any]:
        """Addresses of a contiguous access and active threads, ``[warps, 32]`` each."""
        at = address.flat * self.place.dtype.itemsize + self._low_address(batch)
        return np.reshape(at, (-1, _WARP)), batch.active(address.mask).reshape(-1, _WARP)

    def _count(self, batch: Any, address: Address, made: tuple[Instruction, ...]) -> Count:
        active = batch.active(address.mask).reshape(-1, _WARP)
        size = self.place.dtype.itemsize
        counter: Callable[..., Count] = count_global
        if self.place.storage.scope != "global":
            counter = partial(count_shared, store=self.kind != "load")
        total = Count()
        base, rows = self._low_address(batch), np.atleast_2d(address.flat)
        for row, start, width in made:
            # All elements of a vector may have one address.
            at = rows[min(row, len(rows) - 1)] * size + (base + start)
            total += counter(at.reshape(-1, _WARP), active, width)
        return total
