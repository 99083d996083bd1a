"""Bank conflicts of shared-memory accesses, by algebra and by enumeration.

Shared memory serves one 4-byte word of each of its 32 banks at a time, a *wavefront*. A warp's
request goes in phases: all 32 lanes at once for words, 16 for 8 bytes a lane, 8 for 16 bytes. In a
phase, a bank that is asked for k different words takes k wavefronts, k - 1 of them conflicts;
:mod:`.banks` has all rules.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import LayoutError
from ..gpu.banks import request_wavefronts
from ..gpu.hardware import BANK_BYTES, LINE_BYTES, MAX_ACCESS_BYTES, WARP_SIZE
from .conversion.per_thread import contiguous_bits
from .f2 import intersection
from .linear import LinearLayout, check_known, check_linear, is_power_of_two, log2

BANK_BITS = 8 * BANK_BYTES
#: Bits that one wavefront can carry: 32 banks of 32 bits.
ROW_BITS = 8 * LINE_BYTES
MAX_ACCESS_BITS = 8 * MAX_ACCESS_BYTES


def vector_width(registers: LinearLayout, shared: LinearLayout, element_bits: int) -> int:
    """Find how many elements a thread can move at once between registers and shared memory.

    ``registers`` leads from register, lane, warp and block to the tensor, ``shared`` from offset
    and block. A vector needs registers, in any order, whose elements lie at offsets 0, 1, 2, ... of
    an aligned group, in every lane and warp.
    """
    _check(registers, shared, element_bits)
    moves = registers.without_zero_bases("register").invert_and_compose(shared)
    return _vector_width(moves, element_bits)


def _vector_width(moves: LinearLayout, element_bits: int) -> int:
    """Compute :func:`vector_width` from the map of registers, lanes, ... to offsets."""
    return 1 << len(contiguous_bits(moves, "offset", MAX_ACCESS_BITS // element_bits))


def bank_conflicts(registers: LinearLayout, shared: LinearLayout, element_bits: int) -> int:
    """Count the conflicts of each phase when registers go to shared memory or come from it.

    The count is one less than the number of lanes of a phase that meet in a bank, in the widest
    access that :func:`vector_width` allows. Two lanes meet when their offsets differ by a multiple
    of the 128-byte row; for elements narrower than a word :func:`wavefronts` is exact.

    Examples
    --------
    >>> from tvm_layout_ext.layout import BlockedLayout, SwizzledSharedLayout
    >>> column = BlockedLayout([1, 1], [32, 1], [1, 32], [0, 1]).to_linear([32, 32])
    >>> plain = SwizzledSharedLayout(1, 1, 1, [1, 0]).to_linear([32, 32])
    >>> swizzled = SwizzledSharedLayout(1, 1, 32, [1, 0]).to_linear([32, 32])
    >>> bank_conflicts(column, plain, 32), bank_conflicts(column, swizzled, 32)
    (31, 0)
    """
    _check(registers, shared, element_bits)
    moves = registers.without_zero_bases("register").invert_and_compose(shared)
    width = _vector_width(moves, element_bits)
    row = log2(max(1, ROW_BITS // element_bits))
    offsets = moves.sublayout(["lane"], ["offset"])
    phase = offsets.flat_basis("lane")[: lanes_of_phase_log2(width * element_bits)]
    rows = [1 << i for i in range(row, log2(shared.in_sizes["offset"]))]
    return (1 << intersection(phase, rows)) - 1


def lanes_of_phase_log2(access_bits: int) -> int:
    """Compute how many low bits of the lane number tell apart the lanes of one phase.

    >>> [lanes_of_phase_log2(bits) for bits in (16, 32, 64, 128)]
    [5, 5, 4, 3]
    """
    return log2(WARP_SIZE) - log2(max(1, access_bits // BANK_BITS))


def wavefronts(addresses: Any, access_bytes: int, *, store: bool = False) -> int:
    """Count the wavefronts of one request by looking at every lane.

    ``addresses`` has the byte address of each lane, -1 for an idle one; a lane moves
    ``access_bytes``, 1 to 16. Only reads join phases (:func:`.request_wavefronts`).

    Examples
    --------
    >>> wavefronts(np.arange(32) * 4, 4), wavefronts(np.arange(32) * 128, 4)
    (1, 32)
    """
    if not is_power_of_two(access_bytes) or access_bytes > MAX_ACCESS_BYTES:
        raise LayoutError(f"An access has 1, 2, 4, 8 or 16 bytes, not {access_bytes}.")
    try:
        given = np.asarray(addresses)
    except (TypeError, ValueError):  # Rows of several lengths, or what only looks like an array.
        given = np.zeros((), object)
    if given.ndim != 1 or given.dtype.kind not in "iuf":
        raise LayoutError(f"addresses are {addresses!r}; they must be a row of numbers.")
    if len(given) > WARP_SIZE:
        raise LayoutError(f"A request has at most {WARP_SIZE} lanes, not {len(given)}.")
    lanes = np.full((1, WARP_SIZE), -1)
    lanes[0, : len(given)] = given
    waves, _ = request_wavefronts(lanes, lanes >= 0, access_bytes, joins=not store)
    return int(waves[0])


def _check(registers: LinearLayout, shared: LinearLayout, element_bits: int) -> None:
    check_element(element_bits)
    check_linear(registers, shared)
    check_known(("offset",), shared.in_dims, "input")


def check_element(element_bits: int) -> None:
    """Refuse what is no width of an element."""
    if not is_power_of_two(element_bits) or element_bits > MAX_ACCESS_BITS:
        raise LayoutError(
            f"An element has {element_bits} bits; it must be a power of two up to 128."
        )
