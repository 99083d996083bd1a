"""Sums along rows, and what is computed around them element by element, become one function."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx

from ...ir.queries import are_equal, distinct, is_among, is_number, variables
from ...ir.replace_calls import Make, with_calls_replaced
from ..relax_values import ELEMENTWISE, extents_of, name_of, uses_of

_REDUCTIONS = ("mean", "sum", "max", "min")
#: What ends with elementwise operators itself.
_PRODUCTS = ("matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GatherRows")
class GatherRows:
    """Call one function for each chain along rows that is written out, as a norm or a softmax.

    TVM's FuseOps joins with a sum what follows it, but stores the squares that it adds, and a cast
    that is read beside it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        found = {
            gv: [*_found(func)]
            for gv, func in mod.functions_items()
            if isinstance(func, relax.Function)
            and isinstance(func.body, relax.SeqExpr)
            and "Primitive" not in func.attrs
        }
        return with_calls_replaced(mod, found)


def _found(func: relax.Function) -> Iterator[tuple[relax.Call, Make]]:
    """Calls that end chains, and what calls a function of its own in the place of each."""
    reader = _Chains(func)
    for chain in reader.found():
        yield reader.bound[chain[-1]], partial(_called, reader.bound, chain)


class _Chains:
    """The chains along rows of a function, each the variables of its calls in order."""

    def __init__(self, func: relax.Function) -> None:
        bindings = (one for block in func.body.blocks for one in block.bindings)
        self.bound = {one.var: one.value for one in bindings}
        self.order = list(self.bound)
        self.places = {var: place for place, var in enumerate(self.order)}
        self.used = {var: set(uses_of(value)) for var, value in self.bound.items()}
        self.users: dict[Any, list[Any]] = {}
        for var, used in (*self.used.items(), (None, uses_of(func.body.body))):
            for one in used:
                self.users.setdefault(one, []).append(var)

    def found(self) -> Iterator[list[Any]]:
        """Each chain once."""
        taken = set[Any]()
        for var in self.order:
            if var not in taken and (rows := self._rows(var)) is not None:
                chain = self._chain(var, rows, taken)
                taken.update(chain)
                if chain:
                    yield chain

    def _rows(self, var: Any) -> tuple[Any, ...] | None:
        """The shape whose rows of a known length a call sums up, keeping a dim of one."""
        call = self.bound[var]
        if name_of(call) not in _REDUCTIONS or not call.attrs.keepdims:
            return None
        rows, axes = extents_of(call.args[0]), call.attrs.axis
        if rows is None or len(rows) < 2 or axes is None or len(axes) != 1:
            return None
        is_last = int(axes[0]) in (-1, len(rows) - 1)
        return rows if is_last and isinstance(rows[-1], tirx.IntImm) else None

    def _chain(self, first: Any, rows: Sequence[Any], taken: set[Any]) -> list[Any]:
        """The longest chain of one result around a sum; none where FuseOps does as well."""
        after = self._after(first, rows, taken)
        while after:
            inside = {*after}
            before = self._before(inside, rows, taken)
            inside.update(before)
            seen = [one for one in inside if any(u not in inside for u in self.users.get(one, []))]
            if seen == [after[-1]]:
                return [one for one in self.order if one in inside] if before else []
            after.pop()
        return []

    def _after(self, first: Any, rows: Sequence[Any], taken: set[Any]) -> list[Any]:
        """A sum and what is computed from it along its rows, with nothing else in between."""
        # A chain of one result needs nothing that is computed from it: looking past it takes time.
        inside, outside = {first: None}, set[Any]()
        place, last = self.places[first] + 1, self._last_user(first)
        while place <= last:
            var, place = self.order[place], place + 1
            used = self.used[var]
            if not used.isdisjoint(outside):
                outside.add(var)
            elif not used.isdisjoint(inside):
                if var not in taken and self._is_along(var, rows):
                    inside[var] = None
                    last = max(last, self._last_user(var))
                else:
                    outside.add(var)
        return list(inside)

    def _last_user(self, var: Any) -> int:
        """The place of the last binding that reads a variable, -1 if none does."""
        return max((self.places.get(user, -1) for user in self.users.get(var, ())), default=-1)

    def _before(self, inside: set[Any], rows: Sequence[Any], taken: set[Any]) -> set[Any]:
        """What only a chain reads, and is computed by elements of its rows, but ends no product."""
        found = set[Any]()
        asked = [one for var in inside for one in self.used[var]]
        while asked:
            var = asked.pop()
            if var not in self.bound or var in inside or var in found or var in taken:
                continue
            if any(one not in inside and one not in found for one in self.users[var]):
                continue
            if self._is_along(var, rows) and not self._ends_product(var):
                found.add(var)
                asked += self.used[var]
        return found

    def _is_along(self, var: Any, rows: Sequence[Any]) -> bool:
        """Whether a call has a result an element, or one a row, and needs no other row."""
        call, own = self.bound[var], extents_of(var)
        if own is None or len(own) != len(rows) or not are_equal(own[:-1], rows[:-1]):
            return False
        if not is_number(own[-1], 1) and not are_equal(own[-1:], rows[-1:]):
            return False
        if (summed := self._rows(var)) is not None:
            return are_equal(summed, rows)
        return name_of(call) in ELEMENTWISE or self._is_slice(call)

    def _is_slice(self, call: Any) -> bool:
        """Whether a call takes a part of a value that others read, too, so that it is stored."""
        return name_of(call) == "strided_slice" and len(self.users.get(call.args[0], [])) > 1

    def _ends_product(self, var: Any) -> bool:
        """Whether a call can end the kernel of a product."""
        for one in self.used[var]:
            name = name_of(self.bound.get(one))
            if len(self.users[one]) > 1:
                continue
            if name in _PRODUCTS or (name in ELEMENTWISE and self._ends_product(one)):
                return True
        return False


def _called(bound: dict[Any, Any], chain: Sequence[Any], inside: Any) -> relax.Expr:
    """A call of a function that is made of a chain."""
    calls = [bound[var] for var in chain]
    read = dict.fromkeys(one for call in calls for one in call.args)
    inputs = [one for one in read if one not in chain and _is_input(one)]
    name = "_".join(["fused", *(name_of(call).rpartition(".")[2] for call in calls)])
    sizes = _unbound(inputs)
    gv = inside.builder_.add_func(_function(bound, chain, inputs, sizes), name)
    told = [relax.ShapeExpr(sizes)] if sizes else []
    return relax.Call(gv, [*(inside.visit_expr(one) for one in inputs), *told])


def _unbound(inputs: Sequence[Any]) -> list[Any]:
    """Symbolic sizes of inputs that are not extents themselves, as of ``h * w`` tokens."""
    extents = [extent for one in inputs for extent in extents_of(one) or ()]
    own = [extent for extent in extents if isinstance(extent, tirx.Var)]
    used = distinct(var for extent in extents for var in variables(extent))
    return [var for var in used if not is_among(var, own)]


def _function(
    bound: dict[Any, Any], chain: Sequence[Any], inputs: Sequence[Any], sizes: Sequence[Any]
) -> relax.Function:
    """The calls of a chain as a function that TVM fuses; it is told sizes that no input has."""
    values = {one: relax.Var(f"in_{at}", one.ty) for at, one in enumerate(inputs)}
    params = [*values.values(), *([relax.Var("sizes", relax.ShapeType(sizes))] if sizes else ())]
    builder = relax.BlockBuilder()
    with builder.function("rows", params, {"Primitive": 1}, private=True):
        with builder.dataflow():
            for var in chain:
                call = bound[var]
                given = [values.get(one, one) for one in call.args]
                again = relax.Call(call.op, given, call.attrs, call.ty_args)
                values[var] = builder.emit(again)
            out = builder.emit_output(values[chain[-1]])
        builder.emit_func_output(out)
    (made,) = builder.get().functions.values()
    return relax.utils.copy_with_new_vars(made)


def _is_input(value: Any) -> bool:
    """Whether a function has a parameter for a value, as for all but numbers."""
    if isinstance(value, tvm.ir.Constant):
        return bool(getattr(value.ty, "ndim", 0) > 0)
    return isinstance(value, relax.Var)
