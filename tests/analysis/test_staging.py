from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from tvm_layout_ext.analysis.staging import (
    Walk,
    box,
    conflicts,
    load_walk,
    store_walk,
    swizzled,
    widest_load,
)


def xor_of(images: list[list[int]], order: list[int], places: np.ndarray) -> np.ndarray:
    """Offsets of elements, bit by bit."""
    offsets = np.zeros(places.shape[:-1], np.int64)
    for dim, bits in zip(order, images, strict=True):
        for bit, image in enumerate(bits):
            offsets ^= (places[..., dim] >> bit & 1) * image
    return offsets


@pytest.mark.matrix
@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [3, 7, 33, 64, 4096])
@pytest.mark.parametrize("columns", [3, 7, 33, 64, 4096])
@pytest.mark.parametrize("widths", [(16, 16), (16, 1), (1, 16), (1, 1)])
@pytest.mark.parametrize("threads", [32, 256])
def test_a_transpose_meets_every_bank_once_in_whole_vectors(
    size: int, rows: int, columns: int, widths: tuple[int, int], threads: int
) -> None:
    tile = box([rows, columns], [[0, 1], [1, 0]], [size, size])
    store, load = (
        min(max(1, width // size), n) for width, n in zip(widths, tile[::-1], strict=True)
    )
    group = min(max(1, 4 // size), tile[0])
    load = widest_load(tile, load, group, store=store, store_size=size, size=size)
    threads = min(threads, prod(tile) // load, prod(tile) // (store * group))
    into = load_walk(tile, [1, 0], load, threads)
    out = store_walk(tile, 0, vector=store, group=group, size=size, threads=threads)
    images = swizzled(tile, [1, 0], into, out, size)
    every = np.array(list(product(*map(range, tile))))
    offsets = xor_of(images, [1, 0], every)
    assert sorted(offsets) == list(range(prod(tile)))
    for walk in (into, out):
        width = walk.unit[0]
        assert images[1][: width.bit_length() - 1] == [
            1 << b for b in range(width.bit_length() - 1)
        ]
        assert conflicts(walk, lambda p: xor_of(images, [1, 0], p), 0, 2, size) == 0


@pytest.mark.parametrize(("size", "vectors"), [(1, 16), (2, 8), (4, 4), (8, 2)])
def test_aligned_sides_keep_16_bytes(size: int, vectors: int) -> None:
    tile = box([4096, 4096], [[0, 1], [1, 0]], [size, size])
    group = max(1, 4 // size)
    wide = widest_load(tile, vectors, group, store=vectors, store_size=size, size=size)
    assert wide == vectors


@pytest.mark.parametrize("tile", [[4, 8, 16], [1, 64, 8], [2, 2, 128]])
def test_both_walks_cover_the_tile_once(tile: list[int]) -> None:
    walks = [
        load_walk(tile, [2, 1, 0], min(4, tile[0]), 32),
        store_walk(tile, 0, vector=4, group=1, size=4, threads=32),
    ]
    for walk in walks:
        assert walk.units * prod(walk.unit) == prod(tile)
        assert all(prod(walk.factors(dim)) == extent for dim, extent in enumerate(tile))
        assert len({tuple(place) for place in walk.places(3)}) == walk.units


def test_a_dim_of_unknown_size_gets_a_whole_tile() -> None:
    assert box([None, None], [[0, 1], [1, 0]], [4, 4]) == [64, 64]


def test_rows_that_follow_each_other_plainly_conflict() -> None:
    column = Walk((1, 1), ((0, 32),))
    assert conflicts(column, lambda p: p[:, 0] * 32 + p[:, 1], 1, 2, 4) == 31
