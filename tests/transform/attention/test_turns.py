from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.transform.attention.turns import Heads, as_blocks_end, order_of

#: Heads of 2048 causal rows of 128 by 128 keys, 0.5 MB of K and V each.
CAUSAL = Heads(64, tuple(range(16, 0, -1)), 1.5, 1 << 19, 1 << 15, 132)


@given(st.integers(1, 40), st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 40))
def test_each_tile_has_one_number(count: int, steps: list[int], group: int) -> None:
    heads = replace(CAUSAL, count=count, steps=tuple(steps))
    assert sorted(heads.costs(group)) == sorted(steps * count)


def test_numbers_go_through_a_group_tile_by_tile() -> None:
    heads = replace(CAUSAL, count=5, steps=(3, 1))
    assert heads.costs(2) == [3, 3, 1, 1, 3, 3, 1, 1, 3, 1]
    assert heads.costs(5) == [3] * 5 + [1] * 5


def test_heads_of_even_steps_go_one_by_one() -> None:
    order = order_of(replace(CAUSAL, steps=(16,) * 16), 64)
    assert (order.group, order.alternates) == (1, False)
    # 1024 tiles are eight turns of 132, of 16 steps and what a tile takes besides.
    assert order.time == pytest.approx(8 * (16 + 1.75) * 1.5)


@pytest.mark.parametrize(("shared", "group"), [(1 << 19, 16), (1 << 23, 1)])
def test_a_group_is_as_large_as_its_keys_stay_in_l2(shared: int, group: int) -> None:
    heads = replace(CAUSAL, steps=(16, 16, 15, 14, 12, 11, 9, 8, 6, 5, 3), shared=shared)
    assert order_of(heads, 64).group == group


def test_turns_go_back_and_forth_where_the_first_tiles_are_longest() -> None:
    heads = replace(CAUSAL, count=132, steps=(9, 1), shared=1)
    order = order_of(heads, 132)
    assert order.alternates or order.group < 132
    assert order.time == pytest.approx((9 + 1 + 2 * 1.75) * 1.5)


def test_who_takes_the_next_tile_as_it_is_free_ends_with_the_last_of_them() -> None:
    heads = replace(CAUSAL, count=2, steps=(5, 1, 1), blocks=2)
    assert as_blocks_end(heads, 2) == pytest.approx((5 + 1 + 1 + 3 * 3.0) * 1.5)
    assert as_blocks_end(replace(heads, blocks=6), 2) == pytest.approx((5 + 3.0) * 1.5)


def test_keys_that_all_come_in_one_turn_are_waited_for() -> None:
    heads = Heads(256, (4,) * 4, 2.1, 1 << 18, 1 << 16, 132)
    assert heads.waits(1) == 0.0 < heads.waits(64) < heads.waits(128)
