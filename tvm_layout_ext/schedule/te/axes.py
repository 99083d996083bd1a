"""Collections of axes, told apart by identity: the ``==`` of TVM's IterVar builds an expression."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Any, TypeVar

from tvm.tirx import IterVar

T = TypeVar("T")


def new_axis(name: str, reduction: bool, dom: Any = None) -> IterVar:
    """Create an axis; one made by a split or a fusion has no domain until bounds are known."""
    return IterVar(dom, name, IterVar.CommReduce if reduction else IterVar.DataPar)


def is_reduction(axis: IterVar) -> bool:
    """Whether an axis is one that a reduction sums over."""
    return bool(axis.iter_type == IterVar.CommReduce)


class Axes(list[IterVar]):
    """An ordered list of axes, outermost first."""

    def __contains__(self, axis: Any) -> bool:
        return any(axis.same_as(mine) for mine in self)

    def __str__(self) -> str:
        return ", ".join(axis.var.name for axis in self) or "none"

    def position(self, axis: IterVar) -> int:
        """Position of an axis that is in the list."""
        return next(i for i, mine in enumerate(self) if axis.same_as(mine))


class AxisMap(MutableMapping[IterVar, T]):
    """A dictionary keyed by axes, which cannot be hashed; their variables can."""

    def __init__(self) -> None:
        self._items: dict[Any, tuple[IterVar, T]] = {}

    def __getitem__(self, axis: IterVar) -> T:
        return self._items[axis.var][1]

    def __setitem__(self, axis: IterVar, value: T) -> None:
        self._items[axis.var] = axis, value

    def __delitem__(self, axis: IterVar) -> None:
        del self._items[axis.var]

    def __iter__(self) -> Iterator[IterVar]:
        return iter([axis for axis, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)
