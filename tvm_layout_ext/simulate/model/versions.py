"""Which version of a buffer an address lies in, where a pipelined loop made several.

A flat index then has a product ``x % versions * size``, and ``versions * size`` is the buffer's
whole extent; what fits two such products tells nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from tvm import tirx
from tvm.ir.prim.expr import FloorMod, IntImm, Mod, Mul

from ...ir.queries import nodes_in, variables
from .names import BufferNames
from .places import Place, Places, Versions, handle


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
