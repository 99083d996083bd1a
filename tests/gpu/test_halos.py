"""Boxes of pixels with a halo: what they cover, and where places of a window begin in them."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.gpu.halos import best_halo

Sizes = tuple[int, ...]


@pytest.mark.parametrize(
    ("extents", "places", "reach", "box", "wide"),
    [
        ((64, 56, 56), (3, 3), ((1, 1), (2, 1)), (1, 8, 8), (1, 10, 10)),
        ((2, 96, 96, 96), (3, 3, 3), ((1, 1), (2, 1), (3, 1)), (1, 1, 8, 8), (1, 3, 10, 10)),
        ((64, 28, 28), (3, 3), ((1, 1), (2, 1)), (8, 1, 8), (8, 3, 10)),
        ((8, 1000), (5,), ((1, 1),), (1, 64), (1, 68)),
        ((8, 40), (9,), ((1, 2),), (8, 8), (8, 24)),
        ((16, 32, 32), (3, 3), ((1, 2), (2, 2)), (1, 8, 8), (1, 12, 12)),
    ],
)
def test_the_box_with_the_smallest_halo(
    extents: Sizes, places: Sizes, reach: tuple[tuple[int, int], ...], box: Sizes, wide: Sizes
) -> None:
    found = best_halo(extents, places, reach)
    assert found is not None
    assert (found[0], found[1].box) == (box, wide)


@pytest.mark.parametrize(
    ("extents", "places", "reach"),
    [
        # Too many pixels outside, more copied than nine places are, a box of over 256.
        ((64, 5, 5), (3, 3), ((1, 1), (2, 1))),
        ((64, 56, 56), (3, 3), ((1, 12), (2, 12))),
        ((64, 56, 56), (1, 1), ((1, 1), (2, 1))),
        ((8, 4096), (5,), ((1, 60),)),
    ],
)
def test_windows_without_a_halo(
    extents: Sizes, places: Sizes, reach: tuple[tuple[int, int], ...]
) -> None:
    assert best_halo(extents, places, reach) is None


@given(st.data(), st.integers(1, 3))
def test_places_are_read_from_where_their_pixels_lie(data: st.DataObject, rank: int) -> None:
    extents = data.draw(st.tuples(*[st.integers(1, 70)] * (rank + 1)))
    places = data.draw(st.tuples(*[st.integers(1, 5)] * rank))
    reach = tuple((1 + i, data.draw(st.integers(1, 2))) for i in range(rank))
    found = best_halo(extents, places, reach)
    if found is None:
        return
    box, halo = found
    at = {pixel: i for i, pixel in enumerate(product(*map(range, halo.box)))}
    pixels = list(product(*map(range, box)))
    assert prod(box) == len(pixels) == 64
    for place, offset in zip(product(*map(range, places)), halo.offsets, strict=True):
        for row, pixel in enumerate(pixels):
            moved = [*pixel]
            for (dim, step), n in zip(reach, place, strict=True):
                moved[dim] += step * n
            assert at[tuple(moved)] == offset + row // 8 * halo.pitch + row % 8
