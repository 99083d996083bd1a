"""Layouts of ragged tensors that one block holds: found for nearly all, without conflicts."""

from __future__ import annotations

import random
from itertools import pairwise
from math import prod

import pytest

from tvm_layout_ext.analysis.one_block import OneBlock, costs_no_time, one_block
from tvm_layout_ext.analysis.shared_tile import conflicts
from tvm_layout_ext.hardware import STATIC_SHARED_BYTES

Shape = tuple[int, ...]
LIMIT = 227 << 10


def check(plan: OneBlock | None, order: Shape, size: int, limit: int) -> None:
    """No bank twice on either side, every element once, whole sectors, within the memory."""
    assert plan is not None
    modes = plan.place.modes
    assert modes is not None
    modes.check([plan.tile[dim] for dim in order])
    assert plan.place.elements(plan.tile) * size <= limit
    for walk in (plan.into, plan.out):
        assert walk.units == prod(plan.tile)
        assert walk.lanes * size % 32 == 0
        assert conflicts([walk], plan.tile, plan.place, size, lanes=walk.lanes) == 0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("extents", "order", "size"),
    [
        ((201, 65), (1, 0), 1),
        ((65, 201), (1, 0), 1),
        ((65, 257), (1, 0), 1),
        ((257, 201), (1, 0), 1),
        ((7, 7, 33, 7), (3, 2, 1, 0), 1),
        ((7, 33, 7, 7), (3, 2, 1, 0), 1),
        ((300, 300), (1, 0), 1),
        ((300, 300), (1, 0), 2),
        ((127, 129), (1, 0), 4),
        ((7, 4097), (1, 0), 8),
    ],
)
def test_layouts_without_conflicts_are_found(extents: Shape, order: Shape, size: int) -> None:
    """Of bytes a request is a whole warp, or it would be no whole sector: the hardest ones."""
    check(one_block(extents, order, size, size, None, LIMIT), order, size, LIMIT)


SIZES = [2, 3, 5, 7, 9, 13, 17, 31, 33, 34, 50, 63, 65, 66, 97, 101, 129, 200, 255, 300, 1000, 4097]


def drawn(count: int) -> list[tuple[Shape, Shape, int]]:
    """Permutations of 2 to 4 dims, ragged on both sides, of up to 100 KB."""
    rng, found = random.Random(20), []
    while len(found) < count:
        rank, size = rng.choice([2, 2, 3, 4]), rng.choice([1, 1, 2, 4, 8])
        extents, order = tuple(rng.choices(SIZES, k=rank)), tuple(rng.sample(range(rank), rank))
        merge = any(b == a + 1 for a, b in pairwise(order))
        rows = [extents[dim] * size % 32 for dim in (-1, order[-1])]
        if not merge and all(rows) and 256 <= prod(extents) * size <= 100 << 10:
            found.append((extents, order, size))
    return found


@pytest.mark.matrix
@pytest.mark.parametrize(("extents", "order", "size"), drawn(240))
def test_random_ragged_permutations_find_a_layout(extents: Shape, order: Shape, size: int) -> None:
    check(one_block(extents, order, size, size, None, LIMIT), order, size, LIMIT)


def test_what_leaves_no_room_for_gaps_has_no_layout() -> None:
    """125 bytes are left of 227 KB."""
    assert one_block((481, 483), (1, 0), 1, 1, None, LIMIT) is None


def test_a_tensor_larger_than_the_limit_is_left() -> None:
    assert one_block((127, 129), (1, 0), 4, 4) is None
    assert STATIC_SHARED_BYTES < 127 * 129 * 4


def test_large_tensors_have_1024_threads_and_as_many_as_asked_for() -> None:
    large = one_block((33, 1000), (1, 0), 4, 4, None, LIMIT)
    small = one_block((33, 100), (1, 0), 4, 4, None, LIMIT)
    asked = one_block((33, 100), (1, 0), 4, 4, 128, LIMIT)
    assert large is not None
    assert small is not None
    assert asked is not None
    assert (large.threads, small.threads, asked.threads) == (1024, 512, 128)


def test_slabs_end_at_sectors_of_both_sides_and_their_warps_leave_no_rest() -> None:
    """33 x 7 bytes to as many floats: 32 slabs of 231 bytes are whole sectors, and 8 of 924."""
    plan = one_block((100, 33, 7), (0, 2, 1), 1, 4)
    assert plan is not None
    assert plan.tile[0] % 32 == 0
    warps = plan.threads // 32
    for walk in (plan.into, plan.out):
        assert walk.units % (warps * walk.lanes) == 0


@pytest.mark.parametrize(("blocks", "most"), [(1, 2), (131, 2), (132, 16), (1024, 16)])
def test_what_costs_no_time_has_few_elements_a_thread(blocks: int, most: int) -> None:
    assert costs_no_time(most * 512, 512, blocks)
    assert not costs_no_time(most * 512 + 1, 512, blocks)


@pytest.mark.parametrize(("batch", "found"), [(1024, True), (64, False)])
def test_only_plans_that_cost_no_time_are_searched_for_where_no_others_are_wanted(
    batch: int, found: bool
) -> None:
    extents, order = (batch, 100, 100), (0, 2, 1)
    assert one_block(extents, order, 4, 4) is not None
    assert (one_block(extents, order, 4, 4, free=True) is not None) == found
