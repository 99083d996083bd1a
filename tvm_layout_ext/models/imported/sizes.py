"""Sizes of dims that are not known before a call: torch's symbols, as TIR has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import sympy
import tvm
from torch import SymFloat, SymInt
from tvm import relax, tirx

from ..relax_values import extents_of


def _wide(a: Any) -> Any:
    """A number as Python's float."""
    return tirx.Cast("float64", a)


#: Torch's own functions of numbers, by their names in SymPy.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "FloorDiv": tirx.floordiv,
    "CleanDiv": tirx.floordiv,
    "CeilDiv": lambda a, b: tirx.floordiv(a + b - 1, b),
    "Mod": tirx.floormod,
    "PythonMod": tirx.floormod,
    "ModularIndexing": lambda a, b, modulus: tirx.floormod(tirx.floordiv(a, b), modulus),
    "IntTrueDiv": lambda a, b: _wide(a) / _wide(b),
    "FloatTrueDiv": lambda a, b: a / b,
    "FloatPow": tirx.power,
    "ToFloat": _wide,
    "Max": tirx.max,
    "Min": tirx.min,
    "Identity": lambda a: a,
}


class Sizes:
    """What torch counts in an exported program, as TIR counts it, by the variables of inputs."""

    def __init__(self, program: Any, inputs: Mapping[str, relax.Var]) -> None:
        self._symbols: dict[str, Any] = {}
        #: Symbols of which inputs have multiples alone, which TVM does not divide.
        self._of_multiples: dict[str, Any] = {}
        self._analyzer = tvm.sym.Analyzer()
        for node in program.graph.find_nodes(op="placeholder"):
            sizes = getattr(node.meta.get("val"), "shape", ())
            extents = extents_of(inputs[node.name]) if node.name in inputs else ()
            for size, extent in zip(sizes, extents or (), strict=False):
                if isinstance(size, SymInt):
                    self._take_in(size.node.expr, extent)
        if self._of_multiples:
            size, extent = self._of_multiples.popitem()
            raise ValueError(
                f"a size {extent} of an input does not tell {size}, and nor does another"
            )

    def _take_in(self, size: sympy.Expr, extent: Any) -> None:
        """Note the variables that stand for the symbols of an input's size."""
        own = {str(one.name): one for one in tirx.analysis.undefined_vars(extent)}
        for symbol in size.free_symbols:
            found = extent if size == symbol else own.get(str(symbol))
            if size == symbol:
                self._of_multiples.pop(str(symbol), None)
            elif str(symbol) not in self._symbols:
                self._of_multiples[str(symbol)] = extent
            if found is not None:
                self._symbols.setdefault(str(symbol), found)

    def of(self, size: Any) -> Any:
        """A number or an expression of a size; ValueError if nothing tells it before a call."""
        if isinstance(size, SymInt | SymFloat):
            size = size.node.expr
        if isinstance(size, int | sympy.Integer):
            return tirx.IntImm("int64", int(size))
        return self._analyzer.simplify(self._expression(size))

    def shape_of(self, node: Any) -> list[Any] | None:
        """The extents of a node's tensor, or None where torch does not tell them by inputs'."""
        try:
            return [self.of(size) for size in node.meta["val"].shape]
        except ValueError:
            return None

    def are_equal(self, first: Sequence[Any] | None, second: Sequence[Any]) -> bool:
        """Whether two shapes are the same, however they are written."""
        if first is None or len(first) != len(second):
            return False
        pairs = zip(first, second, strict=True)
        return all(self._analyzer.can_prove_equal(one, other) for one, other in pairs)

    def _expression(self, size: Any) -> Any:
        if isinstance(size, sympy.Integer):
            return tirx.IntImm("int64", int(size))
        if isinstance(size, sympy.Float):
            return tirx.FloatImm("float64", float(size))
        if isinstance(size, sympy.Symbol) and str(size) in self._symbols:
            return self._symbols[str(size)]
        parts = [self._expression(one) for one in size.args]
        if isinstance(size, sympy.Add | sympy.Mul) and parts:
            return reduce(lambda a, b: a + b if isinstance(size, sympy.Add) else a * b, parts)
        if isinstance(size, sympy.Pow) and isinstance(parts[1], tirx.IntImm) and parts[1] > 0:
            return reduce(lambda a, b: a * b, [parts[0]] * int(parts[1]))
        function = _FUNCTIONS.get(type(size).__name__)
        if function is None or not parts:
            raise ValueError(f"a size {size} is not known by the sizes of inputs")
        if type(size).__name__ in ("Max", "Min"):
            return reduce(function, parts)
        return function(*parts)


def is_symbolic(value: Any) -> bool:
    """Whether a tensor of torch has a size that is not known, or a size is not."""
    sizes = getattr(value, "shape", [value])
    return any(isinstance(size, SymInt) and not size.node.expr.is_number for size in sizes)
