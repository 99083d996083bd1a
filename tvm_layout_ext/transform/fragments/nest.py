"""Loop nests over register tiles: one store a block, each element of the tile once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlockRealize
from tvm.sym.iter_affine_map import IterMapLevel

from ...errors import ScheduleError
from ...ir.conditions import analyzer_of
from ...ir.queries import are_equal, is_load_of, is_number, loads_in, substitute, uses
from ...ir.rebuild import with_accesses
from .fragment import Fragment, Fragments

_SERIAL = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.VECTORIZED)


@dataclass(frozen=True)
class FragmentNest:
    """Serial loops around a single store."""

    #: From the outermost.
    loops: list[Any]
    #: The statement inside.
    store: Any
    #: Conditions of the blocks around the store.
    predicates: list[Any]
    #: The innermost block.
    block: Any

    @property
    def name(self) -> str:
        """Name of the block, or of the stored buffer where there is none."""
        return str(self.store.buffer.name if self.block is None else self.block.name_hint)


@dataclass(frozen=True)
class FragmentTile:
    """How a nest walks over the tile of its leading fragment."""

    #: The fragment that is written, or else the one that is read.
    fragment: Fragment
    #: Stand for the element's indices in the tile.
    coordinates: list[Any]
    #: Loops that do not walk over the tile.
    loops: list[Any]
    #: The statement, in terms of coordinates and these loops.
    store: Any
    #: Its conditions, likewise.
    predicates: list[Any]

    def dims(self, indices: Sequence[Any]) -> list[int | None] | None:
        """Which coordinate each index is, None for a constant 0; None if one is neither."""
        found: list[int | None] = []
        for index in indices:
            own = [d for d, var in enumerate(self.coordinates) if var.same_as(index)]
            if not own and not is_number(index, 0):
                return None
            found.append(own[0] if own else None)
        return found

    def ranges(self) -> dict[Any, Any]:
        """Range of each coordinate."""
        sizes = self.fragment.layout.out_sizes.values()
        return {
            var: tvm.ir.Range(0, size) for var, size in zip(self.coordinates, sizes, strict=True)
        }


def read_nest(stmt: Any) -> FragmentNest | None:
    """Take a statement apart; None if it is more than loops, plain blocks and a store."""
    loops: list[Any] = []
    predicates: list[Any] = []
    block = None
    while not isinstance(stmt, tirx.BufferStore):
        if isinstance(stmt, tirx.For) and stmt.kind in _SERIAL:
            loops.append(stmt)
            stmt = stmt.body
        elif isinstance(stmt, SBlockRealize) and _is_plain(stmt):
            block = stmt.block
            if not is_number(stmt.predicate, 1):
                predicates.append(stmt.predicate)
            stmt = stmt.block.body
        else:
            return None
    return FragmentNest(loops, stmt, predicates, block)


def _is_plain(realize: Any) -> bool:
    block = realize.block
    return not (block.iter_vars or block.alloc_buffers or block.match_buffers) and not block.init


def tile_of(nest: FragmentNest, fragments: Fragments) -> FragmentTile:
    """Find out how a nest walks over a tile: each element of one fragment once, in any order."""
    fragment, indices = _leader(nest, fragments)
    coordinates = [tirx.Var(f"c{d}", index.ty) for d, index in enumerate(indices)]
    inverse = _inverse(nest, fragment, list(indices), coordinates)
    if inverse is None:
        shape = "x".join(map(str, fragment.layout.out_sizes.values()))
        raise ScheduleError(
            f"Block {nest.name} accesses fragment {fragment.name} at {list(indices)}; loops of its "
            f"own must visit each of the {shape} elements once."
        )
    tile = FragmentTile(
        fragment,
        coordinates,
        [loop for loop in nest.loops if loop.loop_var not in inverse],
        substitute(nest.store, inverse),
        [substitute(p, inverse) for p in nest.predicates],
    )
    tile = replace(tile, store=_simplified(tile))
    _check_independent(tile, nest.name)
    return tile


def _check_independent(tile: FragmentTile, block: str) -> None:
    """Refuse statements whose elements cannot be handled in any order, by any threads."""
    store = tile.store
    for load in loads_in(store.value):
        if is_load_of(load, store.buffer) and not are_equal(load.indices, store.indices):
            raise ScheduleError(
                f"Block {block} reads {store.buffer.name} at {list(load.indices)} and writes it at "
                f"{list(store.indices)}; the elements of a tile are handled in no order."
            )
    ranges = {var: own for var, own in tile.ranges().items() if int(own.extent) > 1}
    places = tvm.sym.detect_iter_map(store.indices, ranges, True, IterMapLevel.Bijective)
    if len(places.indices) != len(store.indices):
        raise ScheduleError(
            f"Block {block} writes {store.buffer.name} at {list(store.indices)}; each element of "
            f"fragment {tile.fragment.name} must go to a place of its own."
        )


def _leader(nest: FragmentNest, fragments: Fragments) -> tuple[Fragment, Any]:
    target = fragments.of(nest.store.buffer)
    if target is not None:
        return target, nest.store.indices
    loads = fragments.loaded(nest.store)
    fragment, load = max(loads, key=lambda pair: pair[0].layout.total_out_size)
    return fragment, load.indices


def _inverse(
    nest: FragmentNest, fragment: Fragment, indices: list[Any], coordinates: list[Any]
) -> dict[Any, Any] | None:
    """Express the loops over a tile by its coordinates; None if they are no walk over it."""
    loops = [loop for loop in nest.loops if any(uses(index, loop.loop_var) for index in indices)]
    ranges = {loop.loop_var: tvm.ir.Range(0, loop.extent) for loop in loops}
    sizes = list(fragment.layout.out_sizes.values())
    if not _fills(loops, indices, ranges, sizes):
        return None
    long = [d for d, size in enumerate(sizes) if size > 1]
    result = tvm.sym.detect_iter_map(
        [indices[d] for d in long], ranges, True, IterMapLevel.Bijective
    )
    if len(result.indices) != len(long):
        return None
    values = tvm.sym.inverse_affine_iter_map(result.indices, [coordinates[d] for d in long])
    return {var: values.get(var, var * 0) for var in ranges}


def _fills(
    loops: list[Any], indices: list[Any], ranges: Mapping[Any, Any], sizes: list[int]
) -> bool:
    """Whether there are as many iterations as elements, and the indices just reach the ends."""
    if not all(is_number(loop.min, 0) and isinstance(loop.extent, tirx.IntImm) for loop in loops):
        return False
    analyzer = analyzer_of(ranges.items())
    bounds = [analyzer.const_int_bound(index) for index in indices]
    ends = [(b.min_value, b.max_value + 1) for b in bounds]
    iterations = prod(int(loop.extent) for loop in loops)
    return ends == [(0, size) for size in sizes] and iterations == prod(sizes)


def _simplified(tile: FragmentTile) -> Any:
    analyzer = analyzer_of(tile.ranges().items())
    return with_accesses(
        tile.store, lambda buffer, indices: (buffer, list(map(analyzer.simplify, indices)))
    )
