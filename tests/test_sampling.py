"""Designs of the large matrices hold every pair of values."""

from __future__ import annotations

import itertools

import pytest

from tests import sampling
from tests.sampling import pairwise, sample_size, share_size

EXTENTS = (4, 3, 2, 3, 2)
CASES = list(itertools.product(*map(range, EXTENTS)))


def _held(cases: list[tuple[int, ...]], size: int) -> set[tuple[tuple[int, int], ...]]:
    return {part for case in cases for part in itertools.combinations(enumerate(case), size)}


def test_every_pair_is_in_few_of_the_cases() -> None:
    chosen = pairwise(CASES)
    assert _held(chosen, 2) == _held(CASES, 2)
    assert len(chosen) <= 2 * 4 * 3


def test_pairs_that_no_case_has_are_not_asked_for() -> None:
    even = [case for case in CASES if sum(case) % 2 == 0]
    chosen = pairwise(even)
    assert set(chosen) <= set(even)
    assert _held(chosen, 2) == _held(even, 2)


def test_too_many_pairs_still_have_every_value() -> None:
    chosen = pairwise(itertools.product(range(20), range(20)), most=25)
    assert len(chosen) == 25
    assert _held(chosen, 1) == {((place, n),) for place in (0, 1) for n in range(20)}


def test_a_key_gives_the_parameters() -> None:
    cases = [(name, size) for name in "ab" for size in range(4)]
    parities = pairwise(cases, key=lambda name, size: (name, size % 2))
    assert len(parities) == 4


def test_two_cases_run_at_least_and_of_costly_ones_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "whole", False)
    assert [share_size(n) for n in (1, 2, 5, 11)] == [1, 2, 2, 3]
    assert [share_size(n, 1) for n in (1, 2, 5, 11)] == [1, 1, 1, 3]
    assert [sample_size(n, 1) for n in (2, 60, 61)] == [1, 1, 2]
