"""Plans of tiles: both maps cover them, and their swizzle keeps vectors whole and banks apart."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from tvm import s_tir

from benchmarks.thread_programs import Program
from tests.sampling import pairs
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.coalesce.staging.plan import TilePlan, box, plan_tile
from tvm_layout_ext.coalesce.staging.swizzles import swizzled
from tvm_layout_ext.coalesce.thread_map import ThreadMap
from tvm_layout_ext.gpu.banks import request_wavefronts
from tvm_layout_ext.layout.placement import Xor

TYPES = {1: "int8", 2: "float16", 4: "float32", 8: "float64"}


def planned(
    shape: tuple[int, ...], dtype: str, order: tuple[int, ...] = (1, 0), most: int | None = None
) -> TilePlan:
    sch = s_tir.Schedule(Program("permute", shape, dtype, order).function())
    return plan_tile(read_nest(sch, sch.get_sblock("B")), {"A"}, most, 16)


def conflicts(threads: ThreadMap, dims: list[int], place: Xor, size: int, width: int) -> int:
    """Wavefronts too many of a map's first elements, so many elements at once, by counting."""
    at = threads.places("lane", "warp")[:, dims]
    starts = place.offsets(list(at.T)) * size
    full = np.zeros(-(-len(starts) // 32) * 32, np.int64)
    full[: len(starts)] = starts
    active = np.arange(len(full)) < len(starts)
    waves, least = request_wavefronts(
        full.reshape(-1, 32), active.reshape(-1, 32), width * size, joins=False
    )
    return int((waves - least).sum())


@pytest.mark.matrix
@pairs(
    threads=[512, 32],
    columns=[3, 7, 33, 64, 4096],
    rows=[3, 7, 33, 64, 4096],
    size=[1, 2, 4, 8],
)
def test_a_transpose_meets_every_bank_once(
    size: int, rows: int, columns: int, threads: int
) -> None:
    plan = planned((rows, columns), TYPES[size], most=threads)
    (load,) = plan.tiles
    every = np.indices(load.into.tile).reshape(2, -1)
    assert sorted(load.place.offsets(list(every))) == list(range(prod(plan.out.tile)))
    put, read = load.put or load.into.unit[-1], plan.out.unit[load.dims[-1]]
    assert conflicts(load.into, [0, 1], load.place, size, put) == 0
    assert conflicts(plan.out, list(load.dims), load.place, size, read) == 0


@pytest.mark.parametrize("size", TYPES)
def test_aligned_sides_keep_16_bytes(size: int) -> None:
    plan = planned((4096, 4096), TYPES[size])
    (load,) = plan.tiles
    vector = 16 // size
    assert (load.into.unit[-1], plan.out.unit[-1]) == (vector, vector)
    kept = [1 << bit for bit in range(((load.put or vector) - 1).bit_length())]
    assert list(load.place.images[-1][: len(kept)]) == kept


@pytest.mark.parametrize(
    ("shape", "order", "out"),
    [
        ((256, 256), (1, 0), "vector i1 4, lane i1 16 i0 2, warp i0 16, register i0 2"),
        ((260, 260), (1, 0), "vector i1 4, lane i1 8 i0 4, warp i1 2 i0 8, register i0 2"),
        ((8, 64, 32), (2, 1, 0), "vector i2 4, lane i2 2 i0 16, warp i1 8, register i0 2"),
        ((33, 65), (1, 0), "lane i1 32, warp i1 2 i0 8, register i0 8"),
    ],
)
def test_warps_store_rows_and_then_go_along_the_load(
    shape: tuple[int, ...], order: tuple[int, ...], out: str
) -> None:
    plan = planned(shape, "float32", order)
    assert str(plan.out).partition(", block")[0] == out


@pytest.mark.parametrize("shape", [(16, 8, 4), (8, 64, 1), (128, 2, 2)])
def test_both_maps_cover_the_tile_once(shape: tuple[int, ...]) -> None:
    plan = planned(shape, "float32", (2, 1, 0), most=32)
    for threads in (plan.out, plan.tiles[0].into):
        levels = ("vector", "register", "lane", "warp")
        places = {tuple(place) for place in threads.places(*levels)}
        assert len(places) == prod(threads.tile) == prod(plan.out.tile)


def test_whole_vectors_would_meet_banks_twice() -> None:
    """Why they are put down in halves: in rows of 256 bytes 2 words of each vector are read."""
    plan = planned((256, 256), "float32")
    (load,) = plan.tiles
    assert (load.put, plan.out.threads) == (2, 512)
    whole, _ = swizzled(load.into, plan.out, load.dims, 4, 4)
    assert conflicts(plan.out, list(load.dims), whole, 4, 1) > 0


def test_a_dim_of_unknown_size_gets_a_whole_tile() -> None:
    assert box([None, None], [[0, 1], [1, 0]], [4, 4]) == [64, 64]


def test_what_one_thread_moves_at_once_needs_no_tile() -> None:
    with pytest.raises(ScheduleError, match="Block B has 1 elements, which one thread moves"):
        planned((1, 1), "float32")
