"""Which version of a buffer an address lies in, where a pipelined loop made several.

A flat index then has a product ``x % versions * size``, and ``versions * size`` is the buffer's
whole extent; what fits two such products tells nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.ir.prim.expr import FloorMod, IntImm, Mod, Mul, Var

from .names import BufferNames
from .places import Place, Places, Versions, handle


def _rings(kernel: Any) -> set[tuple[int, int]]:
    """Versions, and elements of one, of all products ``x % versions * size`` with a loop in x."""
    loops: set[int] = set()
    tvm_ffi.structural_walk(kernel.body, [(tirx.For, lambda f: loops.add(handle(f.loop_var)))])
    found: set[tuple[int, int]] = set()

    def look(product: Any) -> None:
        ring, size = product.a, product.b
        if not isinstance(ring, FloorMod | Mod) or not isinstance(size, IntImm):
            return
        used: list[int] = []
        tvm_ffi.structural_walk(ring.a, [(Var, lambda var: used.append(handle(var)))])
        if isinstance(ring.b, IntImm) and loops.intersection(used):
            found.add((int(ring.b.value), int(size.value)))

    tvm_ffi.structural_walk(kernel.body, [(Mul, look)])
    return found


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
