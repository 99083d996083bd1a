"""Thread maps as values: what is legal, which iterations each thread does, their linear layout."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.coalesce.thread_map import ThreadMap
from tvm_layout_ext.errors import LayoutError

LEVELS = ("vector", "lane", "warp", "register")


@st.composite
def maps(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 4)) -> ThreadMap:
    """Maps of two iterators, each of which has a digit on every level."""
    levels = [
        (level, [(at, draw(st.sampled_from(sizes))) for at in draw(st.permutations((0, 1)))])
        for level in LEVELS
    ]
    return ThreadMap.of(("i", "j"), *levels)


@given(maps((1, 2, 3)))
def test_a_tile_is_done_once(threads: ThreadMap) -> None:
    places = threads.places(*LEVELS)
    assert len(places) == prod(threads.tile) == threads.count(*LEVELS)
    assert {tuple(place) for place in places} == set(product(*map(range, threads.tile)))


@given(maps())
def test_the_linear_layout_has_each_lane_where_the_map_has_it(threads: ThreadMap) -> None:
    linear = threads.to_linear()
    lanes = np.arange(threads.count("lane"))
    at = linear.apply_arrays(register=0 * lanes, lane=lanes, warp=0 * lanes, block=0 * lanes)
    found = np.stack([at["dim0"], at["dim1"]], axis=1)
    np.testing.assert_array_equal(found, threads.places("lane"))
    assert linear.is_bijective()


def test_the_text_names_iterators_level_by_level() -> None:
    threads = ThreadMap.of(
        ("i", "j"),
        ("vector", [(1, 8)]),
        ("register", [(0, 2)]),
        ("lane", [(1, 16), (0, 2)]),
        ("warp", [(0, 8), (1, 1)]),
        ("block", [(1, None), (0, None)]),
    )
    assert str(threads) == (
        "vector j 8, register i 2, lane j 16 i 2, warp i 8, block j rest i rest"
    )
    assert (threads.vector, threads.threads, threads.tile) == (8, 256, (32, 128))
    assert str(ThreadMap.of("i")) == "one thread"


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ([("lanes", [(0, 2)])], "has the levels vector, register, lane, warp, block, step"),
        ([("lane", [(0, 64)])], "64 lanes; a warp has 32"),
        ([("lane", [(1, 2)])], "no iterator 1; the map has 1"),
        ([("lane", [(0, 0)])], "i has a part of 0"),
        ([("block", [(0, None)]), ("step", [(0, 2)])], "given away before its step"),
    ],
)
def test_what_is_no_map_is_refused(
    levels: list[tuple[str, list[tuple[int, int]]]], said: str
) -> None:
    with pytest.raises(LayoutError, match=said):
        ThreadMap.of("i", *levels)


def test_counts_of_no_power_of_two_have_no_linear_layout() -> None:
    with pytest.raises(LayoutError, match="part of 3, which is no power of two"):
        ThreadMap.of("i", ("lane", [(0, 3)])).to_linear()
