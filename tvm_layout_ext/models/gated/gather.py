"""Two products of the same rows, and what multiplies one by a gate of the other, become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import relax, tirx

from ...gpu.hardware import architecture
from ...ir.queries import substitute
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
    extents_of,
    has_shape,
    name_of,
    slices_of,
    source_of,
)
from .pair import SUMS, GatedPair, known_sizes, sizes_of, written


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GatedProducts")
class GatedProducts:
    """Call one function for ``silu(x @ w1) * (x @ w3)``, where one kernel can compute it.

    Both products are of one weight, whose halves are sliced, or of two, each with a bias or none;
    any operators that compute an element from elements may make one value of both. On ``sm_90a``,
    of 16-bit floats: rows of any number are multiplied by warpgroups, and the sums of a single one
    are added up by the same lanes (``fuse_rows``). Of packed weights, up to 64 rows, whose number
    is known, have a kernel that unpacks both (:mod:`..quantised.tensor_rows`): its function is
    given what they are unpacked from.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        if not has_warpgroups_around():
            return mod
        # What is sliced leaves its split behind, which nobody reads.
        mod = relax.transform.DeadCodeElimination()(mod)
        found = {
            gv: [*_found(mod, Bindings.of(func))]
            for gv, func in mod.functions_items()
            if isinstance(func, relax.Function) and isinstance(func.body, relax.SeqExpr)
        }
        return with_calls_replaced(mod, found) if any(found.values()) else mod


def _found(mod: tvm.IRModule, reader: Bindings) -> Iterator[tuple[relax.Call, Make]]:
    """Calls whose results are made of pairs, and what calls a function in their place."""
    for var in reader.order:
        pair = _pair(reader, var)
        func = None if pair is None else _function(mod, reader, pair)
        if func is not None:
            yield reader.bound[var], partial(_called, reader, *func)


def _pair(reader: Bindings, var: Any) -> GatedPair | None:
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
    return GatedPair(var, operands[0][0], tuple(weights), order, tuple(biases))


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
    narrow = len(types) == 1 and types <= set(NARROW_FLOATS) and str(product.ty.dtype) == SUMS
    return (var, number) if narrow else None


def _sum(reader: Bindings, rounded: Any) -> tuple[Any, Any]:
    """The product that a value is rounded from, and the bias of its columns, or None."""
    value = reader.bound[rounded].args[0]
    call = reader.call(value)
    if name_of(call) == "add":
        for one, other in (call.args, [*call.args][::-1]):
            whole = known_sizes(other) and known_sizes(other) == sizes_of(one)[-1:]
            if whole and name_of(reader.call(one)) == "matmul":
                return one, _narrow(reader, other)
    return value, None


def _narrow(reader: Bindings, bias: Any) -> Any:
    """What a bias is cast from, which the function casts."""
    call = reader.call(bias)
    return call.args[0] if name_of(call) == "astype" else bias


def _which(call: relax.Call) -> int | None:
    """Which half of the last dim a slice takes."""
    dims, parts = sizes_of(call.args[0]), slices_of(call)
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


def _function(
    mod: tvm.IRModule, reader: Bindings, pair: GatedPair
) -> tuple[GatedPair, tirx.PrimFunc] | None:
    """A pair, and the function that one kernel can compute, and shall."""
    sizes = {tuple(known_sizes(one)) for one in pair.weights}
    if not sizes_of(pair.x) or not all(sizes) or len(sizes) > 1:
        return None
    m = pair.shape[0]
    makers = [one for one in map(reader.call, pair.weights) if one is not None]
    if not makers or (isinstance(m, int) and m > tensor_rows.MOST_ROWS):
        return (pair, written(mod, reader, pair)) if _is_legal(pair) else None
    # Of symbolic rows the host chooses at a call, among kernels of one product.
    are_all = isinstance(m, int) and all(map(_is_function, makers))
    if not are_all or len(makers) < len(pair.weights):
        return None
    pair = replace(pair, makers=tuple(makers))
    func = written(mod, reader, pair)
    return (pair, func) if tensor_rows.is_taken(func) else None


def _is_function(call: Any) -> bool:
    """Whether a call is one of a function of tensors."""
    return name_of(call) == "call_tir" and isinstance(call.args[1], relax.Tuple)


def _is_legal(pair: GatedPair) -> bool:
    """Whether one kernel can compute a pair by weights that lie in memory."""
    m, n, k = pair.shape
    m = m if isinstance(m, int) else MANY
    if m == 1:
        return True
    config = gemm_gated.OPERATOR.default_config()
    arch = architecture("sm_90a")
    return gemm_gated.check((m, n, k), str(pair.x.ty.dtype), config, arch) is None


def _called(reader: Bindings, pair: GatedPair, func: tirx.PrimFunc, inside: Any) -> relax.Expr:
    """A call of the function, whose operands and result are views."""
    # Of what operands are views of: TVM makes a kernel of a view of a view.
    shapes = [_at(func, param, pair.shape[0]) for param in func.params]
    given = [
        _viewed(inside, inside.visit_expr(_source(reader, one)), shape)
        for one, shape in zip(pair.operands, shapes, strict=False)
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
