"""Kernels of warpgroups that were read for some sizes, and are written for those of each call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tvm import tirx

from ...errors import ScheduleError
from .read_kernel import BoxedBuffer, Kernel
from .windows import best_box


def with_rows(kernel: Kernel, read: int, rows: Any) -> Kernel:
    """The same product, read for some rows, of another number of them, which may be symbolic.

    Raises ScheduleError if it has other rows, as of each image some pixels, if these are pixels,
    groups or scaled, or if a cluster shares its tiles.
    """
    if kernel.sizes[0] != read:
        raise ScheduleError(
            f"The kernel for {read} rows has {kernel.sizes[0]}, so that others are among them."
        )
    special = (kernel.windows, kernel.groups, kernel.scaled)
    shared = (*kernel.cluster, kernel.slices)
    if any(one is not None for one in special) or any(n > 1 for n in shared):
        raise ScheduleError("Rows are any number in products of matrices, by blocks on their own.")

    def of_rows(source: BoxedBuffer) -> BoxedBuffer:
        pairs = zip(source.indices, source.extents, strict=True)
        extents = (rows if at.same_as(source.moving[0]) else extent for at, extent in pairs)
        return replace(source, extents=tuple(extents))

    return replace(
        kernel,
        sizes=(rows, *kernel.sizes[1:]),
        a=replace(kernel.a, source=of_rows(kernel.a.source)),
        result=replace(kernel.result, target=of_rows(kernel.result.target)),
    )


def with_pixels(kernel: Kernel, sizes: Mapping[int, Any]) -> Kernel:
    """The same convolution of images of other sizes, which may be symbolic.

    ``sizes`` has those in the place of the ones that were read. Raises ScheduleError if its rows
    are no pixels, or the blocks of a cluster share its tiles.
    """
    windows = kernel.windows
    shared = (*kernel.cluster, kernel.slices)
    if windows is None or kernel.members is not None or any(n > 1 for n in shared):
        raise ScheduleError("Sizes are any in convolutions of windows, by blocks on their own.")

    def of_images(source: BoxedBuffer) -> BoxedBuffer:
        extents = tuple(sizes.get(n, n) for n in source.extents)
        return replace(source, extents=extents, folded=tuple(sizes.get(n, n) for n in source.shape))

    extents = tuple(
        tirx.Cast("int32", sizes[n]) if n in sizes else n for n in windows.pixels.extents
    )
    steps = kernel.a.source.steps_along(windows.pixels.variables)
    windows = replace(windows, pixels=replace(windows.pixels, extents=extents))
    return replace(
        kernel,
        sizes=(prod(extents), *kernel.sizes[1:]),
        a=replace(kernel.a, source=of_images(kernel.a.source)),
        result=replace(kernel.result, target=of_images(kernel.result.target)),
        meant=sizes,
        windows=replace(windows, box=best_box(windows.known, steps)),
    )
