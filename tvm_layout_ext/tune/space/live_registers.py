"""How many registers of a thread the sums of a scheduled kernel take at the least."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ...gpu.hardware import BANK_BYTES, WARP_SIZE, Architecture
from ..model.kernel_facts import OWN, KernelFacts, common_loops, moves
from ..model.sites import AccessSite, SiteLoop

__all__ = ["live_sums", "too_many_sums"]

#: Iterations that are counted one by one; of more, a sample counts too few.
COUNTED = 1 << 18


def too_many_sums(kernel: KernelFacts, architecture: Architecture) -> str | None:
    """Say by how much a thread's sums alone exceed its registers; None if they may fit.

    A thread may have 255 registers, and all threads of a block together those of a multiprocessor,
    65,536: 64 each for 1,024 threads. Sums that find no room there live in local memory, and every
    step of the reduction loads and stores them.

    Parameters
    ----------
    kernel : Kernel
    architecture : Architecture

    Returns
    -------
    str or None
        One sentence.
    """
    sums = live_sums(kernel)
    threads = kernel.warps * WARP_SIZE
    room = min(architecture.registers_per_thread, architecture.registers_per_sm // threads)
    wanted = sum(sums.values())
    if wanted <= room:
        return None
    listed = ", ".join(f"{name} {count:,}" for name, count in sums.items())
    return (
        f"The sums of a thread take {wanted:,} registers ({listed}), and each of {kernel.threads:,}"
        f" threads of a block on {architecture.name} may have {room:,}."
    )


def live_sums(kernel: KernelFacts) -> dict[str, int]:
    """Registers of sums that a thread surely holds at one time, by buffer.

    These are the elements of a local buffer, or a lane's share of a fragment in ``warp`` memory,
    that one iteration of a serial loop adds to and the next one adds to again. Of such loops the
    one that holds most counts. Operands are left out: a compiler may load them late.

    Parameters
    ----------
    kernel : Kernel

    Returns
    -------
    dict of str to int
        32-bit registers.
    """
    held: dict[int, dict[str, int]] = {}
    for key, tile in kernel.tiles.items():
        sites = [site for site in kernel.sites if site.buffer.__chandle__() == key]
        scope = sites[0].scope
        if scope not in OWN:
            continue
        around = common_loops([site.loops for site in sites])
        for site in sites:
            if site.is_result and (place := _summed_over(site, around)) is not None:
                size = _touched(site, place, OWN[scope]) * tile.size
                lanes = WARP_SIZE if scope == "warp" else 1
                names = held.setdefault(id(site.loops[place]), {})
                count = -(-size // (BANK_BYTES * lanes))
                names[site.buffer.name] = max(count, names.get(site.buffer.name, 0))
    return max(held.values(), key=lambda names: sum(names.values()), default={})


def _summed_over(site: AccessSite, around: Sequence[SiteLoop]) -> int | None:
    """The outermost serial loop that repeats a sum, which outlives it; None if none does."""
    for number, loop in enumerate(site.loops):
        alive = not any(loop is one for one in around)
        if alive and loop.kind == "serial" and loop.extent > 1 and not moves(site, number):
            return number
    return None


def _touched(site: AccessSite, place: int, own: Sequence[str]) -> int:
    """Different elements that an iteration of a loop adds to."""
    inside = [
        number
        for number, loop in enumerate(site.loops)
        if number > place and not loop.is_grid and loop.kind not in own
    ]
    total = prod(site.loops[number].extent for number in inside)
    flat = (
        np.arange(total)
        if total <= COUNTED
        else np.random.default_rng(0).integers(0, total, COUNTED)
    )
    values: dict[int, Any] = {}
    for number in reversed(inside):
        values[number], flat = flat % site.loops[number].extent, flat // site.loops[number].extent
    found = [np.broadcast_to(index, len(flat)) for index in site.at(values) if index is not None]
    return len(np.unique(np.stack(found), axis=1).T) if found else 1
