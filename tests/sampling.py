"""How matrices are thinned: to pairs of values, and in a plain run to a seeded part."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest

SEED = 20
#: Set by conftest from ``--whole`` and ``--matrix-seed``.
whole, seed = False, SEED


def sample_size(cases: int, least: int = 2) -> int:
    """Cases of a matrix that run: all of a small one, else a sixtieth and at least two."""
    return _part(cases, least, part=60)


def share_size(cases: int, least: int = 2) -> int:
    """Cases that run of a function whose cases are no large matrix: a fifth, at least two."""
    return _part(cases, least, part=5)


def _part(cases: int, least: int, part: int) -> int:
    return cases if whole or cases <= least else max(least, math.ceil(cases / part))


def beside(*values: Any) -> Any:
    """A case beside others of its kind: a plain run has two such cases of a function."""
    return pytest.param(*values, marks=pytest.mark.matrix)


def matrix_examples(count: int) -> int:
    """Hypothesis examples to draw where a whole run draws ``count``."""
    return count if whole else max(10, math.ceil(count / 30))


def pairwise(
    cases: Iterable[tuple[Any, ...]],
    *,
    most: int = 60,
    key: Callable[..., tuple[Any, ...]] | None = None,
) -> list[Any]:
    """Cases in which every value occurs, and every pair of values of two parameters.

    They are chosen greedily by the seed, and keep their order. Where ``most`` of them do not hold
    all pairs, another seed takes others. ``key`` gives the parameters of a case.
    """
    listed = list(cases)
    parts = [_pairs(key(*case) if key else case) for case in listed]
    order = random.Random(seed).sample(range(len(listed)), len(listed))
    heap = [(-len(parts[n]), place, n) for place, n in enumerate(order)]
    heapq.heapify(heap)
    covered: set[Any] = set()
    chosen: list[int] = []
    while heap and len(chosen) < most:
        gain, place, n = heapq.heappop(heap)
        # Gains only shrink, so what gains as much as it did is still the first.
        new = len(parts[n] - covered)
        if new == -gain:
            chosen.append(n)
            covered |= parts[n]
        elif new:
            heapq.heappush(heap, (-new, place, n))
    return [listed[n] for n in sorted(chosen)]


def _pairs(values: Iterable[Any]) -> set[Any]:
    """The values of a case, each with its place, alone and in pairs."""
    placed = [(place, repr(value)) for place, value in enumerate(values)]
    return set(itertools.combinations_with_replacement(placed, 2))


def pairs(*, most: int = 60, **parameters: Iterable[Any]) -> pytest.MarkDecorator:
    """Parametrize with every pair of the values of two parameters: see :func:`pairwise`."""
    cases = pairwise(itertools.product(*parameters.values()), most=most)
    return pytest.mark.parametrize(tuple(parameters), cases)
