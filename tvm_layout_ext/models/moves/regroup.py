"""A reshape of a permutation as a permutation of a reshape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym

from ...ir.evaluate import placeholder_extent
from ...ir.queries import is_number


@dataclass(frozen=True)
class Regrouped:
    """What a value is reshaped to first, and the permutation of that."""

    shape: list[Any]
    order: list[int]


@dataclass(frozen=True)
class _Match:
    """Neighbouring dims of both shapes that have the same elements, those of extent 1 left out."""

    old: list[int]
    new: list[int]


def regroup(dims: Sequence[Any], order: Sequence[int], shape: Sequence[Any]) -> Regrouped | None:
    """Give a value of ``dims``, that is permuted and then reshaped, its shape first.

    Dims that the shape joins have to be neighbours before the permutation, too; None otherwise.
    """
    groups = _groups([dims[axis] for axis in order], shape)
    if groups is None:
        return None
    rank = _ranks(dims)
    own = [[rank[order[at]] for at in group.old] for group in groups]
    if any(places != [*range(places[0], places[0] + len(places))] for places in own):
        return None
    ones = [at for at, extent in enumerate(shape) if is_number(extent, 1)]
    by_place = sorted(zip(own, groups, strict=True), key=lambda pair: pair[0][0])
    first = [*ones, *(at for _, group in by_place for at in group.new)]
    return Regrouped([shape[at] for at in first], [first.index(at) for at in range(len(shape))])


def _ranks(dims: Sequence[Any]) -> dict[int, int]:
    """Places of dims among those of more than one element."""
    wide = [axis for axis, extent in enumerate(dims) if not is_number(extent, 1)]
    return {axis: at for at, axis in enumerate(wide)}


def _groups(old: Sequence[Any], new: Sequence[Any]) -> list[_Match] | None:
    """The smallest groups that two shapes share, in their order."""
    left, right = (
        [at for at, extent in enumerate(one) if not is_number(extent, 1)] for one in (old, new)
    )
    found = list[_Match]()
    while left and right:
        group = _Match([left.pop(0)], [right.pop(0)])
        while (gap := _size(old, group.old) - _size(new, group.new)) != 0:
            side, more = (group.new, right) if gap > 0 else (group.old, left)
            if not more:
                return None
            side.append(more.pop(0))
        found.append(group)
    return None if left or right or not all(_has_same(old, new, one) for one in found) else found


def _size(shape: Sequence[Any], axes: Sequence[int]) -> int:
    return prod(placeholder_extent(shape[at]) for at in axes)


def _has_same(old: Sequence[Any], new: Sequence[Any], group: _Match) -> bool:
    """Whether both sides of a group have as many elements for all values of variables."""
    sides = (prod(old[at] for at in group.old), prod(new[at] for at in group.new))
    return bool(sym.Analyzer().can_prove_equal(*sides))
