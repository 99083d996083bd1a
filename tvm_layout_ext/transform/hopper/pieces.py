"""What all kernels of warpgroups are made of: arena, barriers, phases, registers, descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.script import tirx as T

from ...gpu.warpgroups import PANEL_BYTES, REGISTERS, SWIZZLE_BYTES, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir.rebuild import sequence

#: Bytes of 64 rows of a panel; also of 64 x 64 elements of 16 bits, either way round.
PIECE_BYTES = 64 * PANEL_BYTES
#: Bytes along K of one instruction.
STEP_BYTES = 32


def loop(
    name: str, extent: int, body: Callable[[Any], Any], kind: Any = None, rolled: bool = False
) -> Any:
    """Write a loop; nvcc leaves it one where it is ``rolled``."""
    var = tirx.Var(name, "int32")
    kind = tirx.ForKind.SERIAL if kind is None else kind
    annotations = {"disable_unroll": True} if rolled else {}
    return tirx.For(var, 0, extent, kind, body(var), None, annotations)


def when(condition: Any, *body: Any) -> Any:
    """Write a condition."""
    return tirx.IfThenElse(condition, sequence(body), None)


def tiles_arena(size: int) -> Any:
    """The dynamic shared memory, in bytes."""
    return tirx.decl_buffer(
        (size,), "uint8", "tiles", scope="shared.dyn", data_alignment=SWIZZLE_BYTES
    )


def mbarriers(name: str, count: int) -> Any:
    """So many mbarriers."""
    return tirx.decl_buffer((count,), "uint64", name, scope="shared", data_alignment=8)


def phase(it: Any, stages: int) -> Any:
    """Parity of the phase in which a step uses its stage."""
    return T.bitwise_and(it // stages, 1)


def registers(consumers: int, role: int) -> list[Any]:
    """Let a warpgroup that copies (0) or multiplies (1) have its registers."""
    budget = REGISTERS[consumers]
    return [] if budget is None else [asynchronous.set_registers(budget[role], more=bool(role))]


def release(thread: Any, barriers: Any, stage: Any, *known: Any) -> Any:
    """Give a stage back for a warpgroup, when conditions hold."""
    leads = (thread % WARPGROUP_THREADS).equal(0)
    return when(tirx.all(leads, *known), asynchronous.arrive(barriers, stage))


def described(
    arena: Any, at: Any, leading: int, row_bytes: int = PANEL_BYTES, pitch: int = 8
) -> Any:
    """Describe a part of a tile at a byte of the arena, of eight rows every ``pitch``."""
    return asynchronous.descriptor(arena.access_ptr("r", offset=at), leading, row_bytes, pitch)


def row_of(thread: Any, half: Any) -> Any:
    """Row of a warpgroup's 64 in which a thread has sums: two, eight apart.

    As ``NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16])`` says: 16 rows a warp, four lanes a
    row.
    """
    return thread % WARPGROUP_THREADS // 32 * 16 + half * 8 + thread % 32 // 4


def column_of(thread: Any, which: Any) -> Any:
    """Column, of eight, in which a thread has a sum: two neighbours."""
    return thread % 4 * 2 + which
