"""``LegalSizes``: the sizes that a module was exported for, checked at each call."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ...errors import ScheduleError

#: Torch proves more of a size that is 2 at least, and so takes that for granted of each.
_TAKEN_FOR_GRANTED = 2


class LegalSizes:
    """Ranges and conditions of the symbolic sizes of an exported program.

    TVM plans memory for a range, kernels are chosen and proven for it, and torch traces one way
    of a branch by a condition; neither looks at what a call gives. As in torch, a least size of 2
    is not insisted on. It reads what a program asserts before that is imported.
    """

    def __init__(self, program: Any) -> None:
        inputs = {one.name: one for one in program.graph.find_nodes(op="placeholder")}
        #: Input and dim whose size a symbol is, and what that is called.
        self._places: dict[Any, tuple[int, int]] = {}
        self._names: dict[Any, str] = {}
        for at, name in enumerate(program.graph_signature.user_inputs):
            for dim, size in enumerate(getattr(inputs[name].meta.get("val"), "shape", ())):
                symbol = getattr(getattr(size, "node", None), "expr", None)
                if getattr(symbol, "is_symbol", False) and symbol not in self._places:
                    self._places[symbol], self._names[symbol] = (at, dim), f"{name}.shape[{dim}]"
        ranges = program.range_constraints.items()
        self._ranges = {one: legal for one, legal in ranges if one in self._places}
        self._conditions = self._asserted(program.graph)
        self._passed: set[tuple[int, ...]] = set()

    def check(self, tensors: Sequence[Any]) -> None:
        """Raise ScheduleError, a sentence, unless sizes are legal; another rank is left to TVM."""
        shapes = [one.shape for one in tensors]
        sizes = tuple(size for at, dim in self._places.values() for size in shapes[at][dim:][:1])
        if sizes in self._passed or len(sizes) < len(self._places):
            return
        given = dict(zip(self._places, sizes, strict=True))
        for symbol, legal in self._ranges.items():
            least = int(legal.lower) if legal.lower > _TAKEN_FOR_GRANTED else 1
            if not least <= given[symbol] <= legal.upper:
                most = f" to {legal.upper}" if legal.upper < sys.maxsize - 1 else " and more"
                raise ScheduleError(
                    f"{self._names[symbol]} is {given[symbol]}, exported for {least}{most}."
                )
        for condition in self._conditions:
            self._refuse_against(condition, given)
        self._passed.add(sizes)

    def _refuse_against(self, condition: Any, given: dict[Any, int]) -> None:
        """Raise ScheduleError if sizes are known not to meet a condition of torch's."""
        sympy = sys.modules["sympy"]
        numbers = {one: sympy.Integer(size) for one, size in given.items()}
        if condition.xreplace(numbers) is not sympy.false:
            return
        named = condition.xreplace({one: sympy.Symbol(name) for one, name in self._names.items()})
        told = ", ".join(f"{self._names[one]} = {size}" for one, size in given.items())
        raise ScheduleError(f"torch exported the module for sizes of {named}; {told} are not.")

    def _asserted(self, graph: Any) -> list[Any]:
        """Conditions of sizes of inputs that a graph asserts."""
        found = []
        for node in [one for one in graph.nodes if "_assert_scalar" in str(one.target)]:
            value = getattr(node.args[0], "meta", {}).get("val")
            condition = getattr(getattr(value, "node", None), "expr", None)
            if condition is not None and condition.free_symbols <= self._places.keys():
                found.append(condition)
        return found
