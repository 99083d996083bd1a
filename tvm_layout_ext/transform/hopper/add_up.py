"""Add up the sums of a cluster, each of whose blocks has multiplied a slice of K.

As many blocks as the tile has shares finish one each: such a block gets the others' sums of its
share in the shared memory that held the stages, and adds them to its own in the order of the
blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from tvm import tirx

from ...gpu.warpgroups import WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.rebuild import sequence
from .pieces import when
from .roles import Parts, slice_of

#: Registers that a thread stores at a time: 16 bytes.
_WIDE = 4


def add_up(parts: Parts, sums: Any, finish: Callable[[int], Any]) -> Any:
    """Exchange sums, add them up, and ``finish(share)``."""
    plan = parts.plan
    slices, shares, mine = plan.kernel.slices, plan.shares, slice_of(parts)
    each = int(sums.shape[0]) // shares
    threads = plan.kernel.consumers * WARPGROUP_THREADS
    wide = gcd(each, _WIDE)
    size = (slices - 1) * each * threads
    register = plan.kernel.instruction.register
    view = tirx.decl_buffer(
        (size,), register, "others", data=parts.arena.data, elem_offset=0, scope="shared.dyn",
        data_alignment=16,
    )  # fmt: skip

    def place(slot: Any, number: int) -> Any:
        """Where the sum of a number that comes from a slot lies."""
        group, within = divmod(number, wide)
        return ((slot * (each // wide) + group) * threads + parts.thread) * wide + within

    def send(share: int) -> Any:
        slot = mine - tirx.Cast("int32", mine > share)
        pointer = parts.arena.access_ptr("w", offset=place(slot, 0) * 4)
        made = [asynchronous.map_address(parts.address[0], pointer, share)]
        for at in range(0, each, wide):
            values = [sums[share * each + at + i] for i in range(wide)]
            address = parts.address[0] + tirx.const(at * threads * 4, "uint32")
            made.append(asynchronous.store_at(address, values, register))
        return when(tirx.NE(mine, share), *made)

    def take(share: int) -> Any:
        made = []
        for number in range(each):
            at = share * each + number
            total = sums[at]
            for slot in range(slices - 1):
                total = total + view[place(slot, number)]
            made.append(tirx.BufferStore(sums, total, [at]))
        return when(mine.equal(share), *made, finish(share))

    return sequence(
        [
            tirx.DeclBuffer(view, data=parts.arena.data),
            *asynchronous.cluster_barrier(),
            *map(send, range(shares)),
            *asynchronous.cluster_barrier(),
            *map(take, range(shares)),
        ]
    )
