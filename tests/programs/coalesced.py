"""What tests of ``auto_coalesce`` share: values to move, and counts of what moved them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tvm_layout_ext.coalesce.staging.walks import TileWalk
from tvm_layout_ext.simulate import Report


def numbers(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Whole numbers that every type holds, so that results can be compared exactly."""
    return np.random.default_rng(0).integers(-100, 100, tuple(shape)).astype(dtype)


def sectors(report: Report, buffer: str) -> int:
    """Sectors of 32 bytes of all requests of a buffer, loads and stores."""
    return sum(access.sectors for access in report.accesses if access.buffer == buffer)


def sectors_of_walk(walk: TileWalk, tile: list[int], nest: Any, kind: str) -> int:
    """Sectors of all requests of a side: 32 units each, whichever rows they belong to."""
    access = next(access for access in nest.accesses if access.kind == kind)
    extents = [loop.size for loop in nest.loops]
    (along,) = [dim for dim, step in enumerate(access.steps) if step == 1] or [0]
    places = walk.places(len(tile))
    others = [n if dim != along else 1 for dim, n in enumerate(walk.unit)]
    found = 0
    for corner in product(*(range(0, n, t) for n, t in zip(extents, tile, strict=True))):
        for element in np.indices(others).reshape(len(tile), -1).T:
            at = places + element
            inside = ((at < tile) & (at + corner < extents)).all(axis=1)
            first = (at + corner) @ np.array(access.steps) * access.bytes
            last = first + walk.unit[along] * access.bytes - 1
            for start in range(0, len(at), 32):
                lanes = [i for i in range(start, min(start + 32, len(at))) if inside[i]]
                found += len({s for i in lanes for s in range(first[i] // 32, last[i] // 32 + 1)})
    return found
