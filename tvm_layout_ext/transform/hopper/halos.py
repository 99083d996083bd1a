"""Copy the pixels that all places of a window read for a tile once: the tile's and its halo.

Places of a window read the same pixels again and again: of 3 by 3 each one nine times, of which
eight come out of L2. With a halo a box of 8 by 8 pixels is one of 10 by 10, and a place is read
from it by a descriptor that begins as many rows later. That is legal from any row on, and with any
number of rows between eight pixels and the next eight: the swizzle turns absolute addresses, and
``base_offset`` stays 0 (PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout"; tried
on an H200 for the swizzles of 128 and 64 bytes, at full rate).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import ceil, prod

from ...gpu.warpgroups import BOX_ELEMENTS, WARPGROUP_ROWS
from .read_kernel import Kernel
from .windows import Halo, Windows, all_boxes

#: Rows of the swizzle's pattern, which an instruction reads at a distance from the next ones.
_GROUP = 8
#: How many times the pixels may be, with those outside of the result, of other boxes, and how many
#: times less is copied with a halo, at least.
_MOST_OUTSIDE, _LEAST_SAVED = 1.25, 2


def with_halo(kernel: Kernel) -> Kernel | None:
    """The same convolution whose tiles of A have halos; None where that is not legal or no gain.

    Steps have all places of a window, of as many channels as a row of shared memory has.
    """
    windows = kernel.windows
    apart = kernel.slices == prod(kernel.cluster) == 1 and kernel.a.k_major and kernel.b.k_major
    if windows is None or windows.reach is None or not apart:
        return None
    if set(kernel.a.source.steps_along(windows.pixels.variables)) != {1}:
        return None
    panel, channels = kernel.instruction.shape[2], windows.terms.extents[-1]
    run = min((panel, panel // 2), key=lambda one: ceil(channels / one) * one)
    ends = (one.source.ends_with(windows.terms.variables[-1]) for one in (kernel.a, kernel.b))
    if channels % run and not all(ends):
        return None
    found = _best(windows)
    if found is None:
        return None
    box, halo = found
    return replace(kernel, windows=replace(windows, box=box, run=run, halo=halo))


def _best(windows: Windows) -> tuple[tuple[int, ...], Halo] | None:
    """The box whose halo has the fewest pixels of all, of those with few outside of the result."""
    extents = windows.known
    boxes = all_boxes(WARPGROUP_ROWS, (1,) * len(extents))

    def covered(box: tuple[int, ...]) -> int:
        return prod(ceil(n / size) * size for n, size in zip(extents, box, strict=True))

    most = _MOST_OUTSIDE * min(map(covered, boxes))
    found = {box: halo for box in boxes if covered(box) <= most and (halo := _halo(windows, box))}
    if not found:
        return None
    return min(found.items(), key=lambda one: covered(one[0]) * one[1].rows)


def _halo(windows: Windows, box: tuple[int, ...]) -> Halo | None:
    """The halo of a box; None where its pixels do not lie as an instruction reads them."""
    assert windows.reach is not None
    places = windows.terms.extents[:-1]
    wide = list(box)
    for (dim, step), extent in zip(windows.reach, places, strict=True):
        wide[dim] += step * (extent - 1)
    pitches = [prod(wide[i + 1 :]) for i in range(len(box))]
    starts = [
        sum(at * pitch for at, pitch in zip(pixel, pitches, strict=True))
        for pixel in product(*map(range, box))
    ]
    groups = [starts[i : i + _GROUP] for i in range(0, len(starts), _GROUP)]
    runs = all(group == list(range(group[0], group[0] + _GROUP)) for group in groups)
    apart = {after[0] - before[0] for before, after in pairwise(groups)}
    offsets = tuple(
        sum(at * step * pitches[dim] for at, (dim, step) in zip(place, windows.reach, strict=True))
        for place in product(*map(range, places))
    )
    halo = Halo(tuple(wide), min(apart), offsets)
    pays = _LEAST_SAVED * halo.rows <= WARPGROUP_ROWS * len(offsets)
    return halo if runs and len(apart) == 1 and pays and max(wide) <= BOX_ELEMENTS else None
