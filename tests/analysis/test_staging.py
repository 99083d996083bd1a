from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tvm_layout_ext.analysis.staging import (
    Swizzle,
    choose_patch,
    choose_swizzle,
    choose_tile,
    images,
)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [7, 33, 64, 4096])
@pytest.mark.parametrize("columns", [7, 33, 64, 4096])
@pytest.mark.parametrize("vectors", [(16, 16), (16, 1), (1, 1)])
def test_a_transpose_meets_every_bank_once(
    size: int, rows: int, columns: int, vectors: tuple[int, int]
) -> None:
    store, load = (max(1, width // size) for width in vectors)
    tile = choose_tile([rows, columns], [[0, 1], [1, 0]], [size, size])
    patch = choose_patch(
        tile, [rows, columns], [1, 0], vector=store, group=max(1, 4 // size), size=size
    )
    load = min(load, tile[0])
    _, conflicts = choose_swizzle(tile, [1, 0], patch, load_vector=load, size=size)
    assert conflicts == 0


def test_pieces_cover_the_tile() -> None:
    tile, extents = [4, 8, 16], [100, 8, 16]
    patch = choose_patch(tile, extents, [2, 1, 0], vector=4, group=1, size=4)
    assert np.prod([count for _, count in patch.pieces]) * patch.vector == 4 * 8 * 16
    for dim, extent in enumerate(tile):
        assert np.prod(patch.factors(dim, 2)) == extent


def test_images_are_the_swizzle_bit_by_bit() -> None:
    swizzle = Swizzle(((3, 2, 6), (1, 0, 9)))
    bits = images([16, 64], swizzle)
    for row, column in product(range(16), range(64)):
        offset = 0
        for index, vectors in ((row, bits[0]), (column, bits[1])):
            for b, vector in enumerate(vectors):
                offset ^= vector if index >> b & 1 else 0
        assert offset == swizzle.apply(row * 64 + column)


def test_a_dim_of_unknown_size_gets_a_whole_tile() -> None:
    assert choose_tile([None, None], [[0, 1], [1, 0]], [4, 4]) == [64, 64]
