"""``cp.async``: copies from global to shared memory that are visible only after their wait.

Until the issuing thread waits for the copy's group, the destination is *pending*: whoever touches
it is reported and reads poison. The wait writes the bytes on behalf of the issuing thread; others
still need a barrier after it. :mod:`.pending_copies` says when the source is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...gpu.counts import Count, count_copies
from ..model.code import Code, Run, mask_and
from ..model.values import retyped, retyped_poison
from .access import AccessInstruction
from .located_access import Address
from .pending_copies import PendingCopy, PendingSource


@dataclass(frozen=True)
class CopyMode:
    """By L1 (``cp.async.ca``) or past it; where ``LDGSTS.ZFILL`` fills, it takes twice as long."""

    width: int
    through_cache: bool
    fills: bool = False


def copy(
    loads: Mapping[int, AccessInstruction],
    store: AccessInstruction,
    size: Code | None,
    way: CopyMode,
) -> Run:
    """Compile a copy of which every thread reads ``size`` bytes: 0 or a key of ``loads``.

    Without a size all read those of the only load. Zeros come with the copy for the rest.
    """
    whole = next(iter(loads.values()))

    def run(s: Any, m: Any) -> None:
        if m is not None and not m.any():
            return
        if size is None:
            _issue(s, m, store, way, *_read(s, m, whole, store, None))
            return
        wanted, unknown = size.pair(s, m)
        found = s.batch.defined(whole.site, m, np.broadcast_to(wanted, s.batch.size), unknown)
        active = s.batch.active(m)
        value = np.zeros((store.lanes, s.batch.size), store.place.dtype)
        poison = np.zeros(value.shape, np.int64)
        reads: list[_Read] = []
        for read in np.unique(found[active & (found != 0)]):
            chosen = found == read
            part, codes, more = _read(s, m, loads[int(read)], store, chosen)
            reads += more
            value = np.where(chosen, part, value)
            poison = poison if codes is None else np.where(chosen, codes, poison)
        _issue(s, m, store, way, value, poison if poison.any() else None, reads)

    return run


#: A load and where it read.
_Read = tuple[AccessInstruction, Address]


def _issue(
    s: Any,
    m: Any,
    store: AccessInstruction,
    way: CopyMode,
    value: Any,
    poison: Any,
    reads: list[_Read],
) -> None:
    batch = s.batch
    address = store.locate(s, m)
    if address is None:
        return
    where = [address, *(read for _, read in reads)]
    store.tally_by(batch, where, lambda: _count(batch, store, address, reads, way))
    memory = store.memory(batch)
    lanes = batch.threads(address.mask)
    elements = store.elements(address.flat)[..., lanes]
    moved = np.reshape(value, (store.lanes, batch.size))[..., lanes].reshape(elements.shape)
    cells = store.cells(memory, elements)
    if memory.pending is None:
        memory.pending = np.zeros(memory.cells, np.int64)
    store.check_issue(batch, memory, cells, lanes)
    memory.pending[cells] = store.number + 1
    codes = None if poison is None else poison[..., lanes].reshape(moved.shape)
    group = batch.groups[lanes]
    # A thread without a legal destination copies nothing.
    sources = [source.keep(lanes) for read in reads for source in _sources(batch, *read)]
    batch.pending_copies.append(
        PendingCopy(store, lanes, elements, moved, codes, group, list(s.slots), sources)
    )


def _count(
    batch: Any, store: AccessInstruction, address: Address, reads: list[_Read], way: CopyMode
) -> Count:
    """Wavefronts of a copy; what threads read decides them, too."""
    written, active = store.byte_addresses(batch, address)
    sources = np.full(written.shape, -1)
    for load, where in reads:
        at, chosen = load.byte_addresses(batch, where)
        sources = np.where(chosen, at, sources)
    return count_copies(
        sources, written, active, way.width, through_cache=way.through_cache, fills=way.fills
    )


def _read(
    s: Any, m: Any, load: AccessInstruction, store: AccessInstruction, wanted: Any
) -> tuple[Any, Any, list[_Read]]:
    """What the destination will hold, ``[n, threads]`` in its own type, its poison, and reads."""
    size = s.batch.size
    mask = m if wanted is None else mask_and(s.batch.mask(m), wanted)
    address = load.locate(s, mask) if mask is None or mask.any() else None
    if address is None:
        return np.zeros((store.lanes, size), store.place.dtype), None, []
    value, poison = load.load_at(s, address)
    whole = np.broadcast_to(value, (load.lanes, size))
    codes = None if poison is None else np.broadcast_to(poison, (load.lanes, size))
    if wanted is not None:
        whole = np.where(wanted, whole, load.place.dtype.type(0))
        codes = None if codes is None else np.where(wanted, codes, 0)
    moved = retyped(whole, store.place.dtype)
    codes = retyped_poison(codes, len(moved))
    if missing := store.lanes - len(moved):
        moved = np.concatenate([moved, np.zeros((missing, size), moved.dtype)])
        if codes is not None:
            codes = np.concatenate([codes, np.zeros((missing, size), np.int64)])
    return moved, codes, [(load, address)]


def _sources(batch: Any, load: AccessInstruction, address: Address) -> list[PendingSource]:
    """What a load reads of memory that the kernel may write meanwhile."""
    memory = load.memory(batch)
    if memory.shadow is None:
        return []
    lanes = batch.threads(address.mask)
    return [PendingSource(load, memory, lanes, load.elements(address.flat)[..., lanes])]


def commit(s: Any, m: Any) -> None:
    """Run ``cp.async.commit_group``."""
    s.batch.groups[... if m is None else m] += 1


def wait(allowed: Code) -> Run:
    """Compile ``cp.async.wait_group n``: all but the last ``n`` groups of a thread are complete."""

    def run(s: Any, m: Any) -> None:
        batch = s.batch
        done = batch.groups - int(allowed.run(s, m))
        left = []
        for copy in batch.pending_copies:
            complete = copy.group < done[copy.lanes]
            if m is not None:
                complete &= m[copy.lanes]
            if not complete.any():
                left.append(copy)
                continue
            _complete(batch, copy if complete.all() else copy.keep(complete))
            if not complete.all():
                left.append(copy.keep(~complete))
        batch.pending_copies = left

    return run


def _complete(batch: Any, pending: PendingCopy) -> None:
    """Write what a copy brings, as of the iteration that issued it."""
    access = pending.access
    assert isinstance(access, AccessInstruction)
    memory = access.memory(batch)
    memory.pending[access.cells(memory, pending.elements)] = 0
    for source in pending.sources:
        shadow = source.memory.shadow
        if shadow is not None:
            shadow.log_read(source.cells, source.lanes, source.access.number, batch.clocks)
    kept, batch.slots = batch.slots, pending.slots
    access.write(batch, memory, pending.elements, pending.lanes, pending.value, pending.poison)
    batch.slots = kept
