"""Two products of the same rows that meet in one value, as one function of TIR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...ir.queries import size_of
from ..bindings import Bindings
from ..relax_values import dims_of, extents_of
from ..sums.widen_functions import legalize_ops

SUMS = "float32"


@dataclass(frozen=True)
class GatedPair:
    """Two products, and the value that is made of both."""

    result: Any
    x: Any
    weights: tuple[Any, ...]  #: One of both halves, or two
    #: Variables of the products' values, by the number of the product.
    leaves: dict[Any, int] = field(default_factory=dict)
    biases: tuple[Any, ...] = ()  #: As weights, of a value for each of their rows
    #: Calls of what unpacks each weight, where that is done in the same function.
    makers: tuple[relax.Call, ...] = ()

    @property
    def shape(self) -> tuple[Any, int, int]:
        """Rows, which may be symbolic, columns and terms of a product."""
        *rows, k = sizes_of(self.x)
        return prod(rows), known_sizes(self.weights[0])[0] * len(self.weights) // 2, k

    @property
    def operands(self) -> list[Any]:
        """Rows, weights or what they are unpacked from, and biases."""
        parts = [part for one in self.makers for part in one.args[1].fields]
        return [self.x, *(parts or self.weights), *self.biases]

    def types(self) -> list[relax.TensorType]:
        """Types of a function's operands."""
        m, n, k = self.shape
        m = m if isinstance(m, int) else tirx.Var("rows", "int64")
        halves = [] if len(self.weights) == 2 else [2]
        shapes: list[Any] = [(m, k), *([(*halves, n, k)] * len(self.weights))]
        if self.makers:
            given = self.operands[1 : len(self.operands) - len(self.biases)]
            shapes[1:] = map(known_sizes, given)
        shapes += [(*halves, n)] * len(self.biases)
        kinds = [str(one.ty.dtype) for one in self.operands]
        return [relax.TensorType(*one) for one in zip(shapes, kinds, strict=True)]


def known_sizes(value: Any) -> list[int]:
    """Extents of a tensor, or nothing where some are not known."""
    return dims_of(value) or []


def sizes_of(value: Any) -> list[Any]:
    """Extents of a tensor, of which some may be symbolic."""
    return [size_of(n) for n in extents_of(value) or ()]


def written(mod: tvm.IRModule, reader: Bindings, pair: GatedPair) -> tirx.PrimFunc:
    """A pair as one function of TIR."""
    kind, types = str(pair.x.ty.dtype), pair.types()
    params, outer = ([relax.Var(f"in_{i}", one) for i, one in enumerate(types)] for _ in range(2))
    builder = relax.BlockBuilder()
    unpack = [builder.add_func(mod[one.args[0]], "unpack") for one in pair.makers]
    with builder.function("gated", params, {"Primitive": 1}, private=True):
        with builder.dataflow():
            at = len(params) - len(pair.biases)
            x, given, biases = params[0], params[1:at], params[at:]
            weights = [*_unpacked(builder, pair, unpack, given)] or given
            sums = _sums(builder, pair, x, weights)
            parts = [builder.emit_te(_part, sums[h], h, kind, *biases) for h in range(2)]
            known = {leaf: parts[number] for leaf, number in pair.leaves.items()}
            out = builder.emit_output(_again(builder, reader, pair.result, known))
        builder.emit_func_output(out)
    gv = builder.get().get_global_var("gated")
    with builder.function("main", outer):
        builder.emit_func_output(builder.emit(relax.Call(gv, outer)))
    mod = relax.transform.FuseTIR()(legalize_ops()(builder.get()))
    (func,) = (
        one
        for one in mod.functions.values()
        if isinstance(one, tirx.PrimFunc) and len(one.params) == len(types) + 1
    )
    return func


def _unpacked(
    builder: relax.BlockBuilder, pair: GatedPair, functions: Sequence[Any], given: Sequence[Any]
) -> list[Any]:
    """Emit what unpacks weights."""
    made, at = [], 0
    for gv, call, weight in zip(functions, pair.makers, pair.weights, strict=False):
        count = len(call.args[1].fields)
        parts = relax.Tuple(given[at : at + count])
        made.append(builder.emit(relax.call_tir(gv, parts, weight.ty)))
        at += count
    return made


def _sums(builder: relax.BlockBuilder, pair: GatedPair, x: Any, weights: Sequence[Any]) -> Any:
    """Emit both products: as a batch for warpgroups, else apart."""
    is_apart = pair.shape[0] == 1 or bool(pair.makers)
    made = builder.emit_te(_products_apart if is_apart else _products, x, *weights)
    return [builder.emit(made[h]) for h in range(2)] if is_apart else [made, made]


def _products(x: te.Tensor, *weights: te.Tensor) -> te.Tensor:
    """Both products, as a batch that has the same rows."""
    (m, k), n = x.shape, weights[0].shape[-2]
    own = te.compute((2, m, k), lambda _, i, k: x[i, k], name="own")
    weight = weights[0]
    if len(weights) == 2:
        weight = te.compute(
            (2, n, k),
            lambda h, j, k: tirx.if_then_else(h < 1, weights[0][j, k], weights[1][j, k]),
            name="weights",
        )
    r = te.reduce_axis((0, k), name="k")
    return te.compute(
        (2, m, n),
        lambda h, i, j: te.sum(own[h, i, r].astype(SUMS) * weight[h, j, r].astype(SUMS), axis=r),
        name="gated_matmul",
    )


def _part(sums: te.Tensor, h: int, kind: str, *biases: te.Tensor) -> te.Tensor:
    """One product's values, rounded; ``sums`` are those of a batch of both, or its own."""
    members, m, n = sums.shape

    def value(b: Any, i: Any, j: Any) -> Any:
        # An iterator that is 0: TVM places no block that reads a batch by numbers alone.
        found = sums[b * 2 + h if members > 1 else b, i, j]
        if biases:
            bias = biases[h][j] if len(biases) == 2 else biases[0][h, j]
            found = found + bias.astype(SUMS)
        return found.astype(kind)

    return te.compute((1, m, n), value, name="part")


def _products_apart(x: te.Tensor, *weights: te.Tensor) -> list[te.Tensor]:
    """Both products, apart: each has a sum for every row of a weight."""
    m, k = x.shape
    *halves, n, _ = weights[0].shape
    if len(weights) == 1 and not halves:
        n //= 2

    def product(h: int) -> te.Tensor:
        r = te.reduce_axis((0, k), name="k")

        def weight(j: Any) -> Any:
            if len(weights) == 2:
                return weights[h][j, r]
            return weights[0][h, j, r] if halves else weights[0][h * n + j, r]

        return te.compute(
            (1, m, n),
            lambda b, i, j: te.sum(x[i, r].astype(SUMS) * weight(j).astype(SUMS), axis=r),
            name="NT_matmul",
        )

    return [product(h) for h in range(2)]


def _again(builder: relax.BlockBuilder, reader: Bindings, value: Any, known: dict[Any, Any]) -> Any:
    """Emit a value again, of other products."""
    if not isinstance(value, relax.Var):
        return value
    if value not in known:
        call = reader.bound[value]
        given = [_again(builder, reader, one, known) for one in call.args]
        known[value] = builder.emit(relax.Call(call.op, given, call.attrs, call.ty_args))
    return known[value]
