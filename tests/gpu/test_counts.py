"""The counting rules, as pure functions of addresses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.gpu.counts import (
    Count,
    count_copies,
    count_global,
    count_shared,
    instructions,
)

LANES = np.arange(32)
ALL = np.ones((1, 32), bool)


def shared(addresses: object, width: int = 4, active: object = ALL) -> tuple[int, int]:
    count = count_shared(
        np.asarray(addresses).reshape(1, 32), np.asarray(active).reshape(1, 32), width
    )
    return count.wavefronts, count.least_wavefronts


def sectors(addresses: object, width: int = 4, active: object = ALL) -> tuple[int, int]:
    count = count_global(
        np.asarray(addresses).reshape(1, 32), np.asarray(active).reshape(1, 32), width
    )
    return count.sectors, count.ideal_sectors


@pytest.mark.parametrize("stride", range(1, 33))
def test_stride_in_words_conflicts_by_its_common_divisor_with_the_banks(stride: int) -> None:
    assert shared(LANES * stride * 4) == (np.gcd(stride, 32), 1)


def test_wide_accesses_go_in_phases() -> None:
    assert shared(LANES * 8, width=8) == (2, 2)
    assert shared(LANES * 16, width=16) == (4, 4)
    # Rows of 128 bytes: the 8 threads of each quarter share 4 banks.
    assert shared(LANES * 128, width=16) == (32, 4)
    # Rows of 144 bytes are 4 banks apart.
    assert shared(LANES * 144, width=16) == (4, 4)


def test_idle_threads_cost_nothing() -> None:
    assert shared(LANES * 16, width=16, active=LANES < 4) == (1, 1)
    assert count_shared(LANES[None] * 4, np.zeros((1, 32), bool), 4) == Count()


@pytest.mark.parametrize(
    ("width", "piece"),
    [(3, 1), (6, 2), (12, 4), (24, 8), (48, 16), (32, 16), (1, 1), (2, 2), (8, 8)],
)
def test_vectors_go_in_pieces_as_wide_as_they_are_aligned(width: int, piece: int) -> None:
    assert instructions(width) == [(at, piece) for at in range(0, width, piece)]


def _waves(lanes: list[int], addresses: list[int], width: int) -> int:
    """Most distinct words in one bank, for some threads together."""
    banks: dict[int, set[int]] = {}
    for lane in lanes:
        for word in range(addresses[lane] // 4, (addresses[lane] + width - 1) // 4 + 1):
            banks.setdefault(word % 32, set()).add(word)
    return max(map(len, banks.values()), default=0)


def _twins(lanes: list[int], addresses: list[int]) -> bool:
    """Whether all threads read what their partners at XOR 1, or all at XOR 2, read."""
    return any(
        all(addresses[n] == addresses[n ^ by] for n in lanes if n ^ by in lanes) for by in (1, 2)
    )


def _slow_shared(addresses: list[int], active: list[bool], width: int, store: bool) -> int:
    """The rule spelt out: phases one by one, neighbours joined where a read allows it."""
    threads = min(32, 128 // width)
    live = [lane for lane in range(32) if active[lane]]
    phases = [[n for n in live if n // threads == phase] for phase in range(32 // threads)]
    if len(phases) == 1:
        return _waves(live, addresses, width)
    total = 0
    for first, second in zip(phases[::2], phases[1::2], strict=True):
        both = first + second
        joins = not store and _twins(both, addresses) and _waves(both, addresses, width) <= 1
        parts = [both] if joins else [first, second]
        total += sum(_waves(part, addresses, width) for part in parts)
    return total


def _twin_units() -> st.SearchStrategy[list[int]]:
    """Patterns in which pairs of threads read one address."""
    pairs = st.lists(st.integers(0, 40), min_size=16, max_size=16)
    return pairs.map(lambda units: [unit for unit in units for _ in range(2)])


@given(
    st.lists(st.integers(0, 300), min_size=32, max_size=32) | _twin_units(),
    st.lists(st.booleans(), min_size=32, max_size=32),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.booleans(),
)
def test_any_pattern_matches_the_rule(
    units: list[int], active: list[bool], width: int, store: bool
) -> None:
    addresses = np.array(units) * width
    count = count_shared(addresses[None], np.array(active)[None], width, store=store)
    assert count.wavefronts == _slow_shared(list(addresses), active, width, store)
    assert count.least_wavefronts <= count.wavefronts
    touched = {u for u, on in zip(units, active, strict=True) if on}
    wanted = len({u * width // 32 for u in touched}), -(-len(touched) * width // 32)
    assert sectors(addresses, width, active) == wanted


@given(st.integers(2, 40), st.integers(0, 2**31), st.sampled_from([4, 8, 16]))
def test_many_requests_are_the_sum_of_each(requests: int, seed: int, width: int) -> None:
    rng = np.random.default_rng(seed)
    patterns = rng.integers(0, 64, (3, 32)) * width
    addresses = patterns[rng.integers(0, 3, requests)] + rng.integers(0, 9, (requests, 1)) * 128
    active = rng.random((requests, 32)) < 0.9
    together = count_shared(addresses, active, width)
    apart = [count_shared(a[None], m[None], width) for a, m in zip(addresses, active, strict=True)]
    assert together.wavefronts == sum(count.wavefronts for count in apart)
    assert together.requests == sum(count.requests for count in apart)
    outside = count_global(addresses, active, width)
    each = [count_global(a[None], m[None], width) for a, m in zip(addresses, active, strict=True)]
    assert outside.sectors == sum(count.sectors for count in each)
    assert outside.ideal_sectors == sum(count.ideal_sectors for count in each)


def copied(sources: object, addresses: object, active: object = ALL) -> int:
    rows = (np.asarray(x).reshape(1, 32) for x in (sources, addresses, active))
    return count_copies(*rows).wavefronts


def test_copies_of_zeros_read_no_line() -> None:
    read = np.where(LANES < 8, LANES * 16, -1)
    assert copied(read, LANES * 16) == 4
    assert copied(np.full(32, -1), LANES * 16) == 4
    assert count_copies(LANES[None] * 16, LANES[None] * 16, np.zeros((1, 32), bool)) == Count()


@given(
    st.lists(st.integers(0, 60), min_size=32, max_size=32),
    st.lists(st.integers(0, 60), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_any_copy_matches_the_rule(
    sources: list[int], places: list[int], active: list[bool]
) -> None:
    last = {place: source for source, place, on in zip(sources, places, active, strict=True) if on}
    halves: dict[tuple[int, ...], set[int]] = {}
    for place, source in last.items():
        like = (source // 8, place // 8, (source ^ place) & 3, source // 2, place // 2)
        halves.setdefault(like, set()).add(source % 2)
    moves: dict[tuple[object, ...], list[int]] = {}
    for (*like, sector, _), parts in halves.items():
        moves.setdefault((*like, frozenset(parts)), []).append(sector)
    wanted = sum(max(map(sectors.count, sectors)) for sectors in moves.values())
    count = count_copies(np.array([sources]) * 16, np.array([places]) * 16, np.array([active]))
    assert (count.wavefronts, count.bytes) == (wanted, 16 * sum(active))
    assert count.least_wavefronts == count.wavefronts


@given(
    st.sampled_from([4, 8, 16]),
    st.lists(st.integers(0, 99), min_size=32, max_size=32),
    st.lists(st.integers(0, 99), min_size=32, max_size=32),
    st.lists(st.booleans(), min_size=32, max_size=32),
)
def test_any_copy_through_the_cache_matches_the_rule(
    width: int, sources: list[int], places: list[int], active: list[bool]
) -> None:
    words, wanted = width // 4, 0
    for phase in range(0, 32, 32 // words):
        moves = {
            (sources[i] * words + w, places[i] * words + w)
            for i in range(phase, phase + 32 // words)
            for w in range(words)
            if active[i]
        }
        banks = [[move[side] % 32 for move in moves] for side in (0, 1)]
        wanted += max((bank.count(b) for bank in banks for b in bank), default=0)
    rows = np.array([sources]) * width, np.array([places]) * width, np.array([active])
    count = count_copies(*rows, width, through_cache=True)
    assert (count.wavefronts, count.bytes) == (wanted, width * sum(active))


def test_machine_instructions_that_fill_up_take_twice_as_long() -> None:
    rows = LANES[None] * 16, LANES[None] * 16, np.ones((1, 32), bool)
    assert count_copies(*rows, fills=True).wavefronts == 8 == 2 * count_copies(*rows).wavefronts
