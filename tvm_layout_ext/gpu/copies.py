"""How many wavefronts of shared memory a warp's ``cp.async`` takes, by both ways through the SM.

No document says; the rules were fitted to Nsight Compute's ``ldgsts`` counters of single warps on
an H200 (``benchmarks/copies.py``, 237 address patterns) and hold for 14 whole GEMMs, too.

``cp.async.ca``, through the L1 cache (:func:`cached`), goes in phases as a store does: 32 lanes of
4 bytes, 16 of 8, 8 of 16. A phase takes as many wavefronts as the busiest bank has different moves,
a move being a source word with its target word, and its bank that of either: a word that goes to
several places is read again for each, and words of one bank of the cache wait for one another.
Global addresses have the banks of their place in the 128-byte line. This explains all 82 patterns:
38 of 4 bytes, 38 of 8, 6 of 16.

``cp.async.cg``, past L1 (:func:`bypassed`), always 16 bytes a lane, has no phases. Lanes share a
wavefront, wherever they are in the warp, if

* they read one 128-byte line and write one 128-byte row;
* their vectors move alike: the lowest two bits of the vector's number (which half of a 32-byte
  sector, and whether the sector is odd) change alike from source to target, by XOR;
* their sectors are equally full: a wavefront moves both halves of each of its sectors, the first of
  each, or the second of each;
* and no sector goes to two places: that takes one wavefront for each.

Of lanes that write to one place one counts. Any XOR of whole vectors and any rotation by whole
sectors within the row so take one wavefront. This explains 142 of 146 patterns. The other four are
random: lanes that read one line, each vector many times, and write all places of four rows; there
it gives 1 (of 27), 2 (of 23, of 25 and of 25) wavefronts too few. Ten other random patterns fit.

With a source size that ``ptxas`` cannot see to be 0 or all, the instruction is ``LDGSTS.ZFILL``,
and past L1 takes twice the wavefronts, whatever the sizes are; lanes of size 0 count with the
address that they give (all 9 patterns). Not measured: lanes that read nothing where the size is 0
or all of the copy, and sizes of copies of 4 and 8 bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import hardware
from .requests import NOTHING, distinct, distinct_rows

_VECTOR = hardware.MAX_ACCESS_BYTES
_SECTOR_VECTORS = hardware.SECTOR_BYTES // _VECTOR
_LINE_VECTORS = hardware.LINE_BYTES // _VECTOR
#: Bits of a vector's number that the lanes of a wavefront all change alike.
_ALIKE = 3


def copy_wavefronts(
    sources: Any,
    addresses: Any,
    active: Any,
    width: int,
    *,
    through_cache: bool = False,
    fills: bool = False,
) -> Any:
    """Wavefronts of each request of asynchronous copies.

    ``sources``, -1 where a lane reads nothing, ``addresses`` and ``active`` are ``[requests, 32]``;
    ``through_cache`` says that it is ``cp.async.ca``, as all but those of 16 bytes are, and
    ``fills`` that the machine instruction is ``LDGSTS.ZFILL``.

    Examples
    --------
    Rows of 64 bytes, 512 bytes apart in global memory, take one wavefront each:

    >>> every, lane = np.ones((1, 32), bool), np.arange(32)[None]
    >>> copy_wavefronts(lane // 4 * 512 + lane % 4 * 16, lane * 16, every, 16)
    array([8])
    """
    if through_cache:
        waves = cached(sources, addresses, active, width)
    else:
        waves = bypassed(sources, addresses, active)
    return waves * (2 if fills else 1)


def fewest_wavefronts(sources: Any, active: Any, width: int, *, fills: bool = False) -> Any:
    """What each request takes at least, wherever in shared memory it writes.

    A wavefront reads one line and writes one row of all banks. Parameters are as of
    :func:`copy_wavefronts`; all lanes go to places of their own.
    """
    lines = np.where(active & (sources >= 0), sources // hardware.LINE_BYTES, NOTHING)
    rows = -(-active.sum(axis=1) * width // hardware.LINE_BYTES)
    # Through L1, lanes of several lines share a wavefront where they meet different banks.
    fewest = np.maximum(distinct(lines), rows) if width == _VECTOR else rows
    return fewest * (2 if fills else 1)


def distinct_requests(sources: Any, addresses: Any, active: Any) -> tuple[Any, Any, Any, Any]:
    """Requests that differ by more than whole lines: addresses read, written, first, and like."""
    read = _from_lowest_line(sources, active & (sources >= 0))
    written = _from_lowest_line(addresses, active)
    rows, index, like = distinct_rows(np.concatenate((read, written), axis=1))
    read, written = np.split(rows, 2, axis=1)
    return read, written, index, like


def _from_lowest_line(addresses: Any, active: Any) -> Any:
    """Addresses from the line of the lowest one, and NOTHING where nothing is accessed."""
    lowest = np.where(active, addresses, np.iinfo(np.int64).max).min(axis=1)
    shifted = addresses - (lowest // hardware.LINE_BYTES * hardware.LINE_BYTES)[:, None]
    return np.where(active, shifted, NOTHING)


def _same(values: Any) -> Any:
    """Which lanes have the same value, ``[requests, lanes, lanes]``."""
    return np.equal(values[..., :, None], values[..., None, :])


def bypassed(sources: Any, addresses: Any, active: Any) -> Any:
    """Wavefronts of each request of 16 bytes a lane past the L1 cache.

    Lanes that read nothing (addresses below zero) count as if they read one line of their own,
    vector by vector as they write (not measured).
    """
    to = addresses // _VECTOR
    reads = sources >= 0
    vector = np.where(reads, sources // _VECTOR, to)
    line = np.where(reads, vector // _LINE_VECTORS, -1)
    live = active & ~_overwritten(to, active)
    together = live[:, :, None] & live[:, None]
    for key in (line, to // _LINE_VECTORS, (vector ^ to) & _ALIKE):
        together &= _same(key)
    sector, place = vector // _SECTOR_VECTORS, to // _SECTOR_VECTORS
    together &= _same(_bits(together & _same(sector) & _same(place), vector % _SECTOR_VECTORS))
    sectors = _LINE_VECTORS // _SECTOR_VECTORS
    degree = np.bitwise_count(_bits(together & _same(sector), place % sectors))
    worst = np.where(together, degree[:, None], 0).max(axis=2)
    return np.where(_leads(together, live), worst, 0).sum(axis=1, dtype=np.int64)


def cached(sources: Any, addresses: Any, active: Any, width: int) -> Any:
    """Wavefronts of each request of ``width`` bytes a lane, 4, 8 or 16, through the L1 cache.

    Other parameters as of :func:`bypassed`; lanes that read nothing only write (not measured).
    """
    words = width // hardware.BANK_BYTES
    shape = (len(addresses), words, -1)
    source, target, live = (
        _words(values, words).reshape(shape)
        for values in (sources // hardware.BANK_BYTES, addresses // hardware.BANK_BYTES, active)
    )
    reads = live & (source >= 0)
    move = live[..., :, None] & live[..., None, :] & _same(source) & _same(target)
    first = _leads(move, live)
    waves = 0
    for word, counts in ((source, reads), (target, live)):
        other = counts[..., :, None] & (counts & first)[..., None, :]
        busy = (other & _same(word % hardware.NUM_BANKS)).sum(axis=-1)
        waves = np.maximum(waves, busy.max(axis=-1))
    return np.sum(waves, axis=1)


def _words(values: Any, words: int) -> Any:
    """The words of every lane, one after the other; a mask is that of its lane."""
    spread = np.repeat(values, words, axis=1)
    if spread.dtype == bool:
        return spread
    step = np.tile(np.arange(words), values.shape[1])
    return np.where(spread < 0, spread, spread + step)


def _leads(together: Any, live: Any) -> Any:
    """Which lanes are the first of their kind."""
    return live & (together.argmax(axis=-1) == np.arange(together.shape[-1]))


def _overwritten(to: Any, active: Any) -> Any:
    """Lanes whose place a later lane writes, too."""
    later = np.triu(np.ones((hardware.WARP_SIZE, hardware.WARP_SIZE), bool), 1)
    return (_same(to) & active[:, None] & later).any(axis=2)


def _bits(together: Any, number: Any) -> Any:
    """The set of numbers of all lanes together with each lane, as bits."""
    return np.bitwise_or.reduce(np.where(together, (1 << number)[:, None], 0), axis=2)
