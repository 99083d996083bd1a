"""Collections of axes that compare with ``same_as``.

An IterVar of TVM 0.27 is unhashable and its ``==`` builds an expression, so neither ``in`` nor a
dict works on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

from tvm.tirx import IterVar

T = TypeVar("T")


def new_axis(name: str, reduction: bool, dom: Any = None) -> IterVar:
    """Create an axis; one made by a split or a fusion has no domain until bounds are known."""
    return IterVar(dom, name, IterVar.CommReduce if reduction else IterVar.DataPar)


def is_reduction(axis: IterVar) -> bool:
    """Whether an axis is one that a reduction sums over."""
    return bool(axis.iter_type == IterVar.CommReduce)


class Axes:
    """An ordered list of axes, outermost first."""

    def __init__(self, axes: Iterable[IterVar] = ()) -> None:
        self._axes = list(axes)

    def __iter__(self) -> Iterator[IterVar]:
        return iter(self._axes)

    def __len__(self) -> int:
        return len(self._axes)

    def __getitem__(self, position: int) -> IterVar:
        return self._axes[position]

    def __contains__(self, axis: Any) -> bool:
        return any(axis.same_as(mine) for mine in self._axes)

    def __str__(self) -> str:
        return ", ".join(axis.var.name for axis in self._axes) or "none"

    def index(self, axis: IterVar) -> int:
        """Position of an axis that is in the list."""
        return next(i for i, mine in enumerate(self._axes) if axis.same_as(mine))

    def replace(self, first: int, count: int, new: Iterable[IterVar]) -> None:
        """Put ``new`` where ``count`` axes from position ``first`` on were."""
        self._axes[first : first + count] = new

    def copy(self) -> Axes:
        """A list of its own with the same axes."""
        return Axes(self._axes)


class AxisMap(Generic[T]):
    """A dictionary keyed by axes, in the order of insertion."""

    def __init__(self) -> None:
        self._items: list[tuple[IterVar, T]] = []

    def __contains__(self, axis: IterVar) -> bool:
        return self.get(axis) is not None

    def __getitem__(self, axis: IterVar) -> T:
        found = self.get(axis)
        if found is None:
            raise KeyError(axis.var.name)
        return found

    def __setitem__(self, axis: IterVar, value: T) -> None:
        self._items = [item for item in self._items if not axis.same_as(item[0])]
        self._items.append((axis, value))

    def get(self, axis: IterVar) -> T | None:
        """Value of an axis, or None."""
        return next((value for mine, value in self._items if axis.same_as(mine)), None)

    def items(self) -> Iterator[tuple[IterVar, T]]:
        """Pairs of axis and value."""
        return iter(list(self._items))

    def __iter__(self) -> Iterator[IterVar]:
        return (axis for axis, _ in list(self._items))

    def values(self) -> Iterator[T]:
        """Values alone."""
        return (value for _, value in list(self._items))
