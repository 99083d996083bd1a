"""The bindings of a Relax function, and who uses each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from tvm import relax

_Self = TypeVar("_Self", bound="Bindings")


@dataclass
class Bindings:
    """What each variable is bound to, in order, and the variables that are made of it.

    None among the users is the function's result.
    """

    bound: dict[Any, Any]
    order: list[Any]
    users: dict[Any, list[Any]]

    @classmethod
    def of(cls: type[_Self], func: relax.Function) -> _Self:
        """Read those of a function."""
        bound: dict[Any, Any] = {}
        users: dict[Any, list[Any]] = {}
        order = []
        for block in func.body.blocks:
            for binding in block.bindings:
                bound[binding.var] = binding.value
                order.append(binding.var)
                for used in relax.analysis.free_vars(binding.value):
                    users.setdefault(used, []).append(binding.var)
        for used in relax.analysis.free_vars(func.body.body):
            users.setdefault(used, []).append(None)
        return cls(bound, order, users)

    def call(self, var: Any) -> Any:
        """What a variable is bound to; None for parameters, and for what is no variable."""
        return self.bound.get(var) if isinstance(var, relax.Var) else None
