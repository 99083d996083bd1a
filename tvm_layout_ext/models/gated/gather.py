"""Two products of the same rows, and what multiplies one by a gate of the other, become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx

from ...gpu.hardware import architecture
from ...ir.queries import size_of, substitute
from ...ir.replace_calls import Make, with_calls_replaced
from ...schedules import gemm_gated
from ...target import has_warpgroups_around
from ..any_size.any_rows import MANY
from ..bindings import Bindings
from ..quantised import tensor_rows
from ..relax_values import (
    ELEMENTWISE,
    NARROW_FLOATS,
    VIEWS,
    axes_of,
    bound_in_reach,
    dims_of,
    extents_of,
    has_shape,
    name_of,
    slices_of,
    source_of,
)
from ..sums.widen_functions import legalize_ops

_SUMS = "float32"


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GatedProducts")
class GatedProducts:
    """Call one function for ``silu(x @ w1) * (x @ w3)``, where one kernel can compute it.

    Both products are of one weight, whose halves are sliced, or of two, each with a bias or none;
    any operators that compute an element from elements may make one value of both. On ``sm_90a``,
    of 16-bit floats: rows of any number are multiplied by warpgroups, and the sums of a single one
    are added up by the same lanes (``fuse_rows``).
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not has_warpgroups_around():
            return mod
        # What is sliced leaves its split behind, which nobody reads.
        mod = relax.transform.DeadCodeElimination()(mod)
        found = {
            gv: [*_found(Bindings.of(func))]
            for gv, func in mod.functions_items()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
        }
        return with_calls_replaced(mod, found) if any(found.values()) else mod


@dataclass
class _Pair:
    """Two products, and the value that is made of both."""

    result: Any
    x: Any
    weights: tuple[Any, ...]  #: One of both halves, or two
    #: Variables of the products' values, by the number of the product.
    leaves: dict[Any, int] = field(default_factory=dict)
    biases: tuple[Any, ...] = ()  #: As weights, of a value for each of their rows

    @property
    def shape(self) -> tuple[Any, int, int]:
        """Rows, which may be symbolic, columns and terms of a product."""
        *rows, k = _sizes(self.x)
        return prod(rows), _known(self.weights[0])[0] * len(self.weights) // 2, k


def _known(value: Any) -> list[int]:
    """Extents of a tensor, or nothing where some are not known."""
    return dims_of(value) or []


def _sizes(value: Any) -> list[Any]:
    """Extents of a tensor, of which some may be symbolic."""
    return [size_of(n) for n in extents_of(value) or ()]


def _found(reader: Bindings) -> Iterator[tuple[relax.Call, Make]]:
    """Calls whose results are made of pairs, and what calls a function in their place."""
    for var in reader.order:
        pair = _pair(reader, var)
        if pair is not None and _is_legal(reader, pair):
            yield reader.bound[var], partial(_called, reader, pair, _function(reader, pair))


def _pair(reader: Bindings, var: Any) -> _Pair | None:
    """The pair of products that a value is made of, and nobody else reads, or None."""
    if len(getattr(reader.call(var), "args", ())) < 2:
        return None
    leaves: list[Any] = []
    inside: set[Any] = set()
    if not _is_made_of(reader, var, leaves, inside) or len(leaves) != 2:
        return None
    # The first value of both: what follows has no sums to read.
    if any(_count(reader, one) > 1 for one in reader.bound[var].args):
        return None
    halves = [half for half in (_half(reader, one) for one in leaves) if half is not None]
    products = list(dict.fromkeys(product for product, _ in halves))
    numbers = [number for _, number in halves]
    sums = [_sum(reader, one) for one in products]
    operands = [reader.bound[product].args for product, _ in sums]
    biases = [bias for _, bias in sums if bias is not None]
    if len(biases) not in (0, len(products)):
        return None
    rounded = [reader.bound[one].args[0] for one in products]
    chain = [*(product for product, _ in sums), *rounded, *products, *leaves, *inside]
    alone = all(
        user in (*chain, var) for one in {*chain} - {var} for user in reader.users.get(one, [])
    )
    if not alone or {*numbers} != ({0, 1} if len(products) == 1 else {None}):
        return None
    if any(not _is_same(reader, one[0], operands[0][0]) for one in operands):
        return None
    weights = [_rows(reader, one[1]) for one in operands]
    if any(one is None for one in weights):
        return None
    order = dict(zip(leaves, numbers if len(products) == 1 else (0, 1), strict=True))
    return _Pair(var, operands[0][0], tuple(weights), order, tuple(biases))


def _is_made_of(reader: Bindings, value: Any, leaves: list[Any], inside: set[Any]) -> bool:
    """Whether a value is made of products element by element; which, and by way of what."""
    if not isinstance(value, relax.Var):
        return getattr(value.ty, "ndim", 0) == 0
    if value in leaves or value in inside:
        return True
    if _half(reader, value) is not None:
        leaves.append(value)
        return len(leaves) <= 2
    call = reader.call(value)
    if name_of(call) not in ELEMENTWISE:
        return False
    inside.add(value)
    return all(_is_made_of(reader, one, leaves, inside) for one in call.args)


def _count(reader: Bindings, value: Any) -> int:
    """How many products a value is made of."""
    leaves: list[Any] = []
    _is_made_of(reader, value, leaves, set())
    return len(leaves)


def _half(reader: Bindings, var: Any) -> tuple[Any, int | None] | None:
    """The rounded product that a value is, or half the columns of; 0 or 1 says which."""
    call, number = reader.call(var), None
    if name_of(call) == "strided_slice":
        var, number = call.args[0], _which(call)
        call = reader.call(var)
        if number is None:
            return None
    if name_of(call) != "astype":
        return None
    product = reader.call(_sum(reader, var)[0])
    if name_of(product) != "matmul":
        return None
    types = {str(one.ty.dtype) for one in (*product.args, call)}
    narrow = len(types) == 1 and types <= set(NARROW_FLOATS) and str(product.ty.dtype) == _SUMS
    return (var, number) if narrow else None


def _sum(reader: Bindings, rounded: Any) -> tuple[Any, Any]:
    """The product that a value is rounded from, and the bias of its columns, or None."""
    value = reader.bound[rounded].args[0]
    call = reader.call(value)
    if name_of(call) == "add":
        for one, other in (call.args, [*call.args][::-1]):
            whole = _known(other) and _known(other) == _sizes(one)[-1:]
            if whole and name_of(reader.call(one)) == "matmul":
                return one, _narrow(reader, other)
    return value, None


def _narrow(reader: Bindings, bias: Any) -> Any:
    """What a bias is cast from, which the function casts."""
    call = reader.call(bias)
    return call.args[0] if name_of(call) == "astype" else bias


def _which(call: relax.Call) -> int | None:
    """Which half of the last dim a slice takes."""
    dims, parts = _sizes(call.args[0]), slices_of(call)
    if not dims or not isinstance(dims[-1], int) or parts is None or len(parts) < 3:
        return None
    if [axis % len(dims) for axis in parts[0]] != [len(dims) - 1]:
        return None
    (begin,), (end,) = parts[1], parts[2]
    half, rest = divmod(dims[-1], 2)
    unit = len(parts) < 4 or parts[3] == [1]
    if rest or not unit or (begin, min(end, dims[-1])) not in ((0, half), (half, 2 * half)):
        return None
    return begin // half


def _is_same(reader: Bindings, one: Any, other: Any) -> bool:
    """Whether two values are one, or are views of one that have the same shape."""
    same = _source(reader, one).same_as(_source(reader, other))
    return bool(same) and has_shape(one, extents_of(other))


def _source(reader: Bindings, value: Any) -> Any:
    """What a value is a view of."""
    return source_of(value, VIEWS, lambda one: bound_in_reach(one, reader.bound.get))


def _rows(reader: Bindings, value: Any) -> Any:
    """The weight N x K whose transpose a value is, or None."""
    call = reader.call(value)
    if name_of(call) != "permute_dims" or axes_of(call) != [1, 0]:
        return None
    return call.args[0]


def _is_legal(reader: Bindings, pair: _Pair) -> bool:
    """Whether one kernel can compute a pair, and shall."""
    if not _sizes(pair.x) or not all(map(_known, pair.weights)):
        return False
    if len({tuple(_known(one)) for one in pair.weights}) > 1:
        return False
    m, n, k = pair.shape
    # Some rows by packed weights have a kernel that unpacks them as it reads them, which the host
    # chooses at a call where rows are symbolic.
    made = any(reader.call(one) is not None for one in pair.weights)
    if made and (not isinstance(m, int) or m <= tensor_rows.MOST_ROWS):
        return False
    m = m if isinstance(m, int) else MANY
    if m == 1:
        return True
    config = gemm_gated.OPERATOR.default_config()
    arch = architecture("sm_90a")
    return gemm_gated.check((m, n, k), str(pair.x.ty.dtype), config, arch) is None


def _function(reader: Bindings, pair: _Pair) -> tirx.PrimFunc:
    """A pair as one function of TIR."""
    m, n, k = pair.shape
    m = m if isinstance(m, int) else tirx.Var("rows", "int64")
    kind = str(pair.x.ty.dtype)
    count = len(pair.weights)
    shapes = [(m, k), *([(n, k)] * 2 if count == 2 else [(2, n, k)])]
    kinds = [kind] * len(shapes)
    for bias in pair.biases:
        shapes.append((n,) if count == 2 else (2, n))
        kinds.append(str(bias.ty.dtype))

    def given() -> list[Any]:
        types = [relax.TensorType(*one) for one in zip(shapes, kinds, strict=True)]
        return [relax.Var(f"in_{i}", one) for i, one in enumerate(types)]

    builder, params = relax.BlockBuilder(), given()
    with builder.function("gated", params, {"Primitive": 1}, private=True):
        with builder.dataflow():
            operands, biases = params[: count + 1], params[count + 1 :]
            made = builder.emit_te(_products_of_a_row if m == 1 else _products, *operands)
            sums = [builder.emit(made[h]) for h in range(2)] if m == 1 else [made, made]
            parts = [builder.emit_te(_part, sums[h], h, kind, *biases) for h in range(2)]
            known = {leaf: parts[number] for leaf, number in pair.leaves.items()}
            out = builder.emit_output(_again(builder, reader, pair.result, known))
        builder.emit_func_output(out)
    gv = builder.get().get_global_var("gated")
    outer = given()
    with builder.function("main", outer):
        builder.emit_func_output(builder.emit(relax.Call(gv, outer)))
    mod = relax.transform.FuseTIR()(legalize_ops()(builder.get()))
    (func,) = (
        one
        for one in mod.functions.values()
        if isinstance(one, tirx.PrimFunc) and len(one.params) == len(shapes) + 1
    )
    return func


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
        lambda h, i, j: te.sum(own[h, i, r].astype(_SUMS) * weight[h, j, r].astype(_SUMS), axis=r),
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
            found = found + bias.astype(_SUMS)
        return found.astype(kind)

    return te.compute((1, m, n), value, name="part")


def _products_of_a_row(x: te.Tensor, *weights: te.Tensor) -> list[te.Tensor]:
    """Both products, apart: each has a sum for every row of a weight."""
    n, k = weights[0].shape[-2:]

    def product(h: int) -> te.Tensor:
        r = te.reduce_axis((0, k), name="k")

        def weight(j: Any) -> Any:
            return weights[h][j, r] if len(weights) == 2 else weights[0][h, j, r]

        return te.compute(
            (1, 1, n),
            lambda b, i, j: te.sum(x[i, r].astype(_SUMS) * weight(j).astype(_SUMS), axis=r),
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


def _called(reader: Bindings, pair: _Pair, func: tirx.PrimFunc, inside: Any) -> relax.Expr:
    """A call of the function, whose operands and result are views."""
    # Of what operands are views of: TVM makes a kernel of a view of a view.
    shapes = [_at(func, param, pair.shape[0]) for param in func.params]
    given = [
        _viewed(inside, inside.visit_expr(_source(reader, one)), shape)
        for one, shape in zip((pair.x, *pair.weights, *pair.biases), shapes, strict=False)
    ]
    made = relax.TensorType(shapes[-1], str(func.params[-1].dtype))
    gv = inside.builder_.add_func(func, "gated")
    out = inside.builder_.emit(relax.call_tir(gv, relax.Tuple(given), made))
    return _viewed(inside, out, pair.result.ty.shape)


def _viewed(inside: Any, value: Any, shape: Sequence[Any]) -> Any:
    if has_shape(value, shape):
        return value
    return inside.builder_.emit(relax.op.reshape(value, shape))


def _at(func: tirx.PrimFunc, param: Any, rows: Any) -> list[Any]:
    """The shape of a function's parameter where it is called."""
    own = func.params[0].shape[0]
    return [substitute(n, {own: rows}) if isinstance(own, tirx.Var) else n for n in param.shape]
