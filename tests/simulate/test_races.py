"""The race detector against a detector that remembers everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.simulate.races import Clocks, Shadow

BLOCKS, WARPS, LANES = 2, 2, 64
#: A few lanes of each warp, so that accesses meet.
CHOICES = [0, 1, 33, 34, 64, 65, 97]
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["read", "write"]), st.sampled_from(CHOICES), st.integers(0, 2))
    | st.tuples(st.just("barrier"), st.integers(0, 1), st.just(0))
    | st.tuples(st.just("warp"), st.integers(0, 3), st.just(0)),
    max_size=30,
)


class Memory:
    """All accesses so far, each with what its warp had seen of the others."""

    def __init__(self, across: bool) -> None:
        self.across = across
        self.time = 0
        self.seen = np.zeros((BLOCKS * WARPS, BLOCKS * WARPS), int)
        self.done: list[tuple[str, int, int, int]] = []

    def order(self, warps: list[int], inside: bool) -> None:
        self.time += 1
        for w in warps:
            for v in [w] if inside else warps:
                self.seen[w, v] = self.time

    def conflicts(self, kind: str, lane: int, cell: int) -> bool:
        found = False
        for other_kind, other, where, time in self.done:
            if where != cell or other == lane or "write" not in (kind, other_kind):
                continue
            same_block = lane // LANES == other // LANES
            if not same_block and not self.across:
                continue
            found |= time >= self.seen[lane // 32, other // 32]
        self.done.append((kind, lane, cell, self.time))
        return found


def play(operations: list[Any], across: bool) -> tuple[list[bool], list[bool]]:
    """Whether each access conflicts, by the shadow and by full memory."""
    clocks, shadow, memory = Clocks(1, BLOCKS, WARPS), Shadow(6, across), Memory(across)
    got, wanted = [], []
    for kind, which, cell in operations:
        if kind == "barrier":
            clocks.join_blocks(np.arange(BLOCKS) == which)
            memory.order([which * WARPS + w for w in range(WARPS)], inside=False)
            continue
        if kind == "warp":
            clocks.join_warps(np.arange(BLOCKS * WARPS) == which)
            memory.order([which], inside=True)
            continue
        place = cell if across else cell + 3 * (which // LANES)
        cells, lanes = np.array([place]), np.array([which])
        wanted.append(memory.conflicts(kind, which, place))
        if kind == "read":
            got.append(len(shadow.check_read(cells, lanes, clocks)) > 0)
            shadow.log_read(cells, lanes, 0, clocks)
        else:
            got.append(any(map(len, shadow.check_write(cells, lanes, clocks))))
            shadow.writes[cells] = shadow.tag(lanes, 0, clocks)
    return got, wanted


def first(found: list[bool]) -> int | None:
    return found.index(True) if True in found else None


@pytest.mark.parametrize("across", [False, True], ids=["shared memory", "global memory"])
@given(operations=OPERATIONS)
def test_first_race_is_found_and_nothing_before_it(across: bool, operations: list[Any]) -> None:
    # After a race the last write alone no longer tells all, so only the first is compared.
    got, wanted = play(operations, across=across)
    assert first(got) == first(wanted)


def test_broadcast_read_then_write_by_one_reader_is_a_race() -> None:
    clocks, shadow = Clocks(1, 1, 2), Shadow(1, False)
    shadow.log_read(np.zeros(64, int), np.arange(64), 0, clocks)
    _, reads = shadow.check_write(np.array([0]), np.array([63]), clocks)
    assert len(reads) == 1
    clocks.join_blocks(np.array([True]))
    assert not any(map(len, shadow.check_write(np.array([0]), np.array([63]), clocks)))


@pytest.mark.parametrize("across", [False, True])
def test_a_read_before_a_syncwarp_does_not_meet_a_write_behind(across: bool) -> None:
    reads = [("read", 64, 2), ("warp", 2, 0), ("read", 65, 2)]
    assert first(play([*reads, ("write", 65, 2)], across)[0]) is None
    # Of another lane, or another warp, it meets the second read.
    for lane in (66, 97):
        assert first(play([*reads, ("write", lane, 2)], across)[0]) == 2
    again = [*reads, ("warp", 2, 0), ("write", 97, 2)]
    assert first(play(again, across)[0]) == 2


def test_a_barrier_of_one_block_does_not_order_reads_of_another() -> None:
    clocks, shadow = Clocks(1, BLOCKS, WARPS), Shadow(1, True)
    for lane in (0, LANES):
        shadow.log_read(np.zeros(1, int), np.array([lane]), 0, clocks)
    clocks.join_blocks(np.array([False, True]))
    _, reads = shadow.check_write(np.array([0]), np.array([LANES]), clocks)
    assert len(reads) == 1


def test_reads_of_blocks_before_are_not_those_of_the_same_lanes_now() -> None:
    shadow, lane = Shadow(1, True), np.array([0])
    for clocks in (Clocks(1, 1, 1), Clocks(2, 1, 1)):
        shadow.log_read(np.zeros(1, int), lane, 0, clocks)
    _, reads = shadow.check_write(np.array([0]), lane, clocks)
    assert len(reads) == 1


def test_reads_of_one_warp_are_ordered_by_its_own_barrier() -> None:
    clocks, shadow = Clocks(1, 1, 2), Shadow(1, False)
    shadow.log_read(np.zeros(32, int), np.arange(32), 0, clocks)
    clocks.join_warps(np.array([True, False]))
    assert not any(map(len, shadow.check_write(np.array([0]), np.array([5]), clocks)))
    _, reads = shadow.check_write(np.array([0]), np.array([40]), clocks)
    assert len(reads) == 1
