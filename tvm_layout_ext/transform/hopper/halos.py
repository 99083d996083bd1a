"""Let tiles of a convolution have halos, from which all places of its windows are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, prod

from ...gpu.halos import best_halo
from .read_kernel import Kernel


def with_halos(kernel: Kernel) -> Iterator[Kernel]:
    """The same convolution whose tiles of A have halos; none where that is not legal, or no gain.

    A step has all places of a window, of as many channels as rows of 128 bytes have, or of 64,
    which have steps of half the size. The one with fewer zeros comes first.
    """
    windows = kernel.windows
    apart = kernel.slices == prod(kernel.cluster) == 1 and kernel.a.k_major and kernel.b.k_major
    if windows is None or windows.reach is None or not apart:
        return
    if set(kernel.a.source.steps_along(windows.pixels.variables)) != {1}:
        return
    found = best_halo(windows.known, windows.terms.extents[:-1], windows.reach)
    if found is None:
        return
    panel, channels = kernel.instruction.shape[2], windows.terms.extents[-1]
    sides = (kernel.a.source, kernel.b.source)
    for run in sorted((panel, panel // 2), key=lambda one: ceil(channels / one) * one):
        if channels % run == 0 or all(one.ends_with(windows.terms.variables[-1]) for one in sides):
            box, halo = found
            yield replace(kernel, windows=replace(windows, box=box, run=run, halo=halo))
