"""Finds the user's buffer that a bare pointer into merged shared memory means.

Shared buffers are merged into one allocation. Loads and stores keep their buffer as a view, but an
asynchronous copy has only a pointer and an offset. The bytes that the views' loads and stores can
touch, from the bounds of their indices, tell whose the offset is.

Where a pipelined loop made several versions of a buffer, a flat index has a product ``x % versions
* size``, and ``versions * size`` is its whole extent; what fits two such products tells nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import tvm_ffi
from tvm import ir, tirx
from tvm.ir.prim.expr import FloorMod, IntImm, Mod, Mul, Ramp

from ...ir.conditions import ranges_known
from ...ir.queries import nodes_in, variables
from .places import Place, Places, Versions, handle

#: Greater XORs are no places in shared memory.
_MOST = 1 << 30


@dataclass
class BufferNames:
    """Byte ranges of the views of each storage."""

    analyzer: Any
    ranges: dict[int, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def note(self, place: Place, index: Any) -> None:
        """Widen a view's range by one of its accesses."""
        span = self._span(place, index, 0)
        if span is None:
            return
        known = self.ranges.setdefault(place.storage.number, {})
        low, high = known.get(place.name, span)
        known[place.name] = min(low, span[0]), max(high, span[1])

    def _span(self, place: Place, index: Any, width: int) -> tuple[int, int] | None:
        lanes = 1
        if isinstance(index, Ramp):
            lanes, index = int(index.lanes.value), index.base
        bound = self.analyzer.const_int_bound(self._without_xor(index))
        if abs(bound.min_value) >= 1 << 40 or abs(bound.max_value) >= 1 << 40:
            return None
        size = place.dtype.itemsize
        return bound.min_value * size, bound.max_value * size + max(width, lanes * size)

    def _without_xor(self, index: Any) -> Any:
        """An index with a bounded variable for each XOR, of which TVM's analyzer knows nothing."""

        def bounded(xor: Any) -> Any:
            sides = [self.analyzer.const_int_bound(side) for side in (xor.a, xor.b)]
            large, small = sorted(sides, key=lambda side: int(side.max_value), reverse=True)
            if min(side.min_value for side in sides) < 0 or large.max_value > _MOST:
                return xor
            # Only the bits that the smaller side has can change.
            changed = (1 << int(small.max_value).bit_length()) - 1
            low, high = large.min_value & ~changed, large.max_value | changed
            swizzled = tirx.Var("swizzled", xor.ty)
            self.analyzer.bind(swizzled, ir.Range(low, high + 1))
            return swizzled

        return tvm_ffi.structural_map(index, [(tirx.BitwiseXor, bounded)], order="post")

    def of(self, place: Place, index: Any, width: int) -> str:
        """Name of the buffer whose range overlaps an access by pointer most, if one does."""
        span = self._span(place, index, width)
        known = self.ranges.get(place.storage.number, {})
        if span is None or not known:
            return place.name
        overlap = {
            name: min(high, span[1]) - max(low, span[0]) for name, (low, high) in known.items()
        }
        best = max(overlap, key=lambda name: overlap[name])
        return best if overlap[best] > 0 else place.name


def find_names(kernel: Any, places: Places) -> BufferNames:
    """Find the byte ranges of all shared buffers of a device function."""
    names = BufferNames(ranges_known(kernel.body))
    for node in nodes_in(kernel.body, ir.TensorLoad, tirx.BufferStore):
        buffer = node.buffer if isinstance(node, tirx.BufferStore) else node.source
        place = places.by_buffer.get(handle(buffer))
        if place is not None and place.storage.scope.startswith("shared"):
            names.note(place, node.indices[0])
    return names


def _rings(kernel: Any) -> set[tuple[int, int]]:
    """Versions, and elements of one, of all products ``x % versions * size`` with a loop in x."""
    loops = {handle(loop.loop_var) for loop in nodes_in(kernel.body, tirx.For)}
    return {
        (int(ring.b.value), int(size.value))
        for ring, size in ((product.a, product.b) for product in nodes_in(kernel.body, Mul))
        if isinstance(ring, FloorMod | Mod)
        and isinstance(size, IntImm)
        and isinstance(ring.b, IntImm)
        and loops.intersection(map(handle, variables(ring.a)))
    }


def note_versions(kernel: Any, places: Places, names: BufferNames) -> None:
    """Give the shared storages of a kernel the versions of their buffers, by name."""
    sizes: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for count, size in _rings(kernel):
        sizes[count * size].add((count, size))
    for place in places.by_buffer.values():
        (fitting, *more) = sizes.get(_elements(place), {None})
        span = names.ranges.get(place.storage.number, {}).get(place.name)
        if fitting is None or more or span is None:
            continue
        count, size = fitting[0], fitting[1] * place.dtype.itemsize
        first, last = max(span[1] - count * size, 0), span[0]
        if place.storage.bytes == count * size:
            first = last = 0
        place.storage.versions[place.name] = Versions(count, size, first, last)


def _elements(place: Place) -> int:
    """Elements of a shared buffer's view; 0 if that is not known."""
    extents = [e.value for e in place.shape if isinstance(e, IntImm)]
    if not place.storage.scope.startswith("shared") or len(extents) != len(place.shape):
        return 0
    return math.prod(extents) * place.lanes
