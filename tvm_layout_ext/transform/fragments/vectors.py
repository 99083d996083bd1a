"""How many registers of a thread one access to memory may move at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from ...gpu.hardware import MAX_ACCESS_BYTES
from ...ir.conditions import analyzer_of
from ...ir.pointers import offset_of
from ...ir.queries import loads_in, substitute
from ...layout import LinearLayout
from ...layout.conversion.per_thread import contiguous_bits
from .fragment import Fragments
from .nest import FragmentTile


def vector_bits(
    tile: FragmentTile, fragments: Fragments, maps: Sequence[LinearLayout]
) -> tuple[int, ...]:
    """Register bits of the leading fragment that walk along a vector, lowest first.

    Accesses to memory must then go to aligned neighbours, or not move at all; and each fragment's
    registers, found by ``maps``, must lie at equal distances.
    """
    accesses = _accesses(tile, fragments)
    if not accesses:
        return ()
    most = min(8 * MAX_ACCESS_BYTES // int(buffer.dtype.bits) for buffer, _ in accesses)
    best: tuple[int, ...] = ()
    for dim, name in enumerate(tile.fragment.layout.out_names):
        bits = contiguous_bits(tile.fragment.own, name, most)
        while bits and not (
            strided(bits, maps) and _moves_vectors(tile, dim, 1 << len(bits), accesses)
        ):
            bits = bits[:-1]
        best = max(best, bits, key=len)
    return best


def strided(bits: Sequence[int], maps: Sequence[LinearLayout]) -> bool:
    """Whether registers that the bits number lie at equal distances, before and after each map."""
    own = [1 << bit for bit in bits]
    images = [[layout.flat_basis("register")[bit] for bit in bits] for layout in maps]
    return all(
        all(v == vectors[0] << i for i, v in enumerate(vectors)) for vectors in [own, *images]
    )


def _accesses(tile: FragmentTile, fragments: Fragments) -> list[tuple[Any, Any]]:
    found = [(load.source, load.indices) for load in loads_in(tile.store.value)]
    found.append((tile.store.buffer, tile.store.indices))
    return [(buffer, indices) for buffer, indices in found if fragments.of(buffer) is None]


def _moves_vectors(
    tile: FragmentTile, dim: int, width: int, accesses: Sequence[tuple[Any, Any]]
) -> bool:
    """Whether all accesses allow vectors along a dim of the tile, and at least one makes them."""
    steps = [_step(tile, dim, width, offset_of(*access)) for access in accesses]
    return all(step is not None for step in steps) and any(steps)


def _step(tile: FragmentTile, dim: int, width: int, offset: Any) -> int | None:
    """Distance of a vector's elements in memory, 0 or 1; None if they are not accessed at once."""
    var = tile.coordinates[dim]
    group, lane = tirx.Var("group", var.ty), tirx.Var("lane", var.ty)
    size = list(tile.fragment.layout.out_sizes.values())[dim]
    analyzer = analyzer_of([*tile.ranges().items(), (group, size // width), (lane, width)])
    first = substitute(offset, {var: group * width})
    moved = analyzer.simplify(substitute(offset, {var: group * width + lane}) - first)
    if isinstance(moved, tirx.IntImm) and int(moved) == 0:
        return 0
    start = analyzer.modular_set(analyzer.simplify(first))
    aligned = start.coeff % width == 0 and start.base % width == 0
    return 1 if aligned and moved.same_as(lane) else None
