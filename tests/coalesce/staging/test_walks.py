from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest

from tests.sampling import pairs
from tvm_layout_ext.coalesce.staging.shared_tile import (
    SharedTileLayout,
    choose_shared_layout,
    conflicts,
    padded,
)
from tvm_layout_ext.coalesce.staging.swizzles import swizzled
from tvm_layout_ext.coalesce.staging.walks import TileWalk, box, load_walk, store_walk, widest_load


@pytest.mark.matrix
@pairs(
    threads=[32, 256],
    widths=[(16, 16), (16, 1), (1, 16), (1, 1)],
    columns=[3, 7, 33, 64, 4096],
    rows=[3, 7, 33, 64, 4096],
    size=[1, 2, 4, 8],
)
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
    place, left = choose_shared_layout(tuple(tile), (1, 0), into, out, size)
    assert left == 0
    assert place.images is not None
    every = np.array(list(product(*map(range, tile))))
    assert sorted(place.offsets(every)) == list(range(prod(tile)))
    for walk in (into, out):
        bits = (walk.unit[0] - 1).bit_length()
        assert place.images[1][:bits] == [1 << bit for bit in range(bits)]


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
    column = TileWalk((1, 1), ((0, 32),))
    assert [conflicts([column], [32, 32], padded([32, 32], [0, 1], p), 4) for p in (0, 1)] == [
        31,
        0,
    ]


def test_where_a_swizzle_leaves_conflicts_rows_are_tried_and_the_better_kept() -> None:
    # Two doubles come in, and 16 rows go out: whole vectors meet in banks, in rows even more so.
    tile = [32, 32]
    into, out = load_walk(tile, [1, 0], 2, 32), TileWalk((1, 1), ((1, 32), (0, 32)))
    swizzle = SharedTileLayout((1, 0), swizzled(tile, [1, 0], into, out, 8))
    rows = [conflicts([into, out], tile, padded(tile, [1, 0], p), 8) for p in range(0, 18, 2)]
    place, left = choose_shared_layout(tuple(tile), (1, 0), into, out, 8)
    assert left == min([conflicts([into, out], tile, swizzle, 8), *rows]) > 0
    assert left == conflicts([into, out], tile, place, 8)


def test_a_tile_of_no_power_of_two_has_padded_rows() -> None:
    tile = [34, 64]
    into, out = (
        TileWalk((1, 1), ((0, 34), (1, 64))),
        TileWalk((1, 1), ((1, 16), (0, 2), (1, 4), (0, 17))),
    )
    place, left = choose_shared_layout(tuple(tile), (1, 0), into, out, 4)
    assert (place.images, place.strides, left) == (None, (34, 1), 0)
