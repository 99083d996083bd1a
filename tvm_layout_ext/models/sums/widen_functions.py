"""Functions such as ``exp`` and ``softmax`` of 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..known_values import scalar_of
from ..moves.fills import FILLS
from ..moves.takes import lower_take
from ..relax_values import NARROW_FLOATS, name_of, operators_of, rewritten
from ..tf32 import OPERATORS, lower_rounded
from .adaptive_pools import POOLED_AXES, lower_uneven_pool
from .group_norms import GroupNormsInSteps, widened_from


def legalize_ops(tf32: Iterable[str] = ()) -> tvm.transform.Pass:
    """TVM's ``LegalizeOps``, with functions of 16-bit floats that are computed in float32.

    TVM rounds each step of such a function to 16 bits, and adds up a softmax or a mean in them:
    sums of more than 2048 ones stand still in float16, of more than 256 in bfloat16, and that of a
    mean may be infinite in float16. PyTorch
    computes in float32 and rounds once, which is also faster: a division of halves is one of
    floats, with checks. Norms and powers TVM has of float16, and none of bfloat16.
    Products of ``float32`` of the kinds ``tf32`` may be rounded to that.
    """
    known: dict[str, Any] = dict.fromkeys(_FUNCTIONS | _OF_BFLOAT16, _legalize)
    known |= {"relax.take": lower_take, "relax.nn.leakyrelu": _lower_leaky, **FILLS}
    known |= dict.fromkeys(POOLED_AXES, _lower_adaptive)
    for kind in tf32:
        known |= dict.fromkeys(OPERATORS[kind], lower_rounded)
    passes = [GroupNormsInSteps(), _GroupNorms(), relax.transform.LegalizeOps(known)]
    return tvm.transform.Sequential(passes, name="tvm_layout_ext.LegalizeOps")


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.GroupNorms")
class _GroupNorms:
    """Lowers each group norm of what is widened for it with the cast, which FuseOps leaves apart.

    Relax has no group norm of bfloat16, so such a model comes with casts around it.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        if "nn.group_norm" not in operators_of(mod):
            return mod
        return relax.transform.DeadCodeElimination()(rewritten(mod, _LowerGroupNorms))


@mutator
class _LowerGroupNorms(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        if name_of(call) != "nn.group_norm":
            return call
        narrow = widened_from(call.args[0], self.lookup_binding)
        if narrow is None:
            return call
        attrs, dtype = call.attrs, str(call.args[0].ty.dtype)

        def wide(x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
            where = (attrs.num_groups, attrs.channel_axis, attrs.axes)
            return topi.nn.group_norm(topi.cast(x, dtype), gamma, beta, *where, attrs.epsilon)

        given = (narrow, *call.args[1:])
        return self.builder_.call_te(wide, *given, primfunc_name_hint="group_norm")


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name, dtype = str(call.op.name), str(call.args[0].ty.dtype)
    known = _FUNCTIONS | (_OF_BFLOAT16 if dtype == "bfloat16" else {})
    attrs = call.attrs
    layout = getattr(attrs, "layout", None)
    if (
        dtype not in NARROW_FLOATS
        or name not in known
        or getattr(attrs, "out_layout", layout) != layout
    ):
        return call.op.get_attr("FLegalize")(builder, call)
    scalars = [scalar_of(one, builder.lookup_binding) for one in call.args]
    if None not in scalars:  # TOPI computes of tensors.
        scalars = [None] * len(scalars)

    def wide(*values: te.Tensor) -> te.Tensor:
        rest = iter(values)
        given = [
            topi.cast(next(rest), "float32") if one is None else tirx.const(one, "float32")
            for one in scalars
        ]
        return topi.cast(known[name](attrs, *given), call.ty.dtype)

    tensors = [arg for arg, one in zip(call.args, scalars, strict=True) if one is None]
    hint, pattern = name.rsplit(".", 1)[-1], _PATTERNS.get(name)
    kept = None if pattern is None else {"op_pattern": pattern}
    return builder.call_te(wide, *tensors, primfunc_name_hint=hint, primfunc_attrs=kept)


def _lower_leaky(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """A leaky ReLU by a maximum: of a choice TVM makes a branch, in which no thread has vectors."""
    slope, dtype = float(call.attrs.alpha), str(call.ty.dtype)
    if not 0 < slope <= 1 or "float" not in dtype:
        return call.op.get_attr("FLegalize")(builder, call)

    def leaky(x: te.Tensor) -> te.Tensor:
        return te.compute(x.shape, lambda *at: tirx.max(x(*at), x(*at) * tirx.const(slope, dtype)))

    return builder.call_te(leaky, call.args[0], primfunc_name_hint="leaky_relu")


def _lower_adaptive(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    made = lower_uneven_pool(builder, call)
    return _legalize(builder, call) if made is None else made


def _grid_sample(attrs: Any, x: te.Tensor, places: te.Tensor) -> te.Tensor:
    how = (attrs.method, attrs.layout, attrs.padding_mode, attrs.align_corners)
    return topi.image.grid_sample(x, places, *how)


def _silu(_attrs: Any, x: te.Tensor) -> te.Tensor:
    return x * topi.sigmoid(x)


def _gelu(_attrs: Any, x: te.Tensor) -> te.Tensor:
    return x * (0.5 + 0.5 * topi.erf(x * 0.5**0.5))


def _gelu_tanh(_attrs: Any, x: te.Tensor) -> te.Tensor:
    # Half of 1 + tanh(x) is the sigmoid of 2 x.
    return x * topi.sigmoid(2 * 0.7978845608028654 * x * (1 + 0.044715 * x * x))


def _layer_norm(attrs: Any, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
    return topi.nn.layer_norm(x, gamma, beta, attrs.axes, attrs.epsilon)


def _instance_norm(attrs: Any, x: te.Tensor, gamma: te.Tensor, beta: te.Tensor) -> te.Tensor:
    return topi.nn.instance_norm(x, gamma, beta, attrs.channel_axis, attrs.axes, attrs.epsilon)


def _pool(make: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    def made(attrs: Any, x: te.Tensor) -> te.Tensor:
        places = (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
        how = (attrs.ceil_mode, attrs.layout, attrs.count_include_pad)
        return make(x, *places, "avg", *how)

    return made


def _adaptive(name: str, make: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    def made(attrs: Any, x: te.Tensor) -> te.Tensor:
        layout, sizes = str(attrs.layout), attrs.output_size
        if sizes is None:
            sizes = [x.shape[layout.index(axis)] for axis in POOLED_AXES[name]]
        return make(x, sizes, "avg", layout)

    return made


def _mean(x: te.Tensor, axes: Any, keepdims: bool) -> te.Tensor:
    many = prod(x.shape[int(axis)] for axis in (range(x.ndim) if axes is None else axes))
    return topi.sum(x, axes, keepdims) / topi.cast(many, "float32")


def _variance(x: te.Tensor, axes: Any, keepdims: bool) -> te.Tensor:
    apart = x - _mean(x, axes, True)
    return _mean(apart * apart, axes, keepdims)


def _along(make: Callable[..., te.Tensor]) -> Callable[..., te.Tensor]:
    return lambda attrs, x: make(x, attrs.axis, bool(attrs.keepdims))


_ADAPTIVE = dict(
    zip(
        POOLED_AXES,
        (topi.nn.adaptive_pool1d, topi.nn.adaptive_pool, topi.nn.adaptive_pool3d),
        strict=True,
    )
)
_FUNCTIONS: dict[str, Callable[..., te.Tensor]] = {
    "relax.exp": lambda _, x: topi.exp(x),
    "relax.log": lambda _, x: topi.log(x),
    "relax.sigmoid": lambda _, x: topi.sigmoid(x),
    "relax.tanh": lambda _, x: topi.tanh(x),
    # Of which CUDA has none for 16 bits.
    "relax.sinh": lambda _, x: topi.sinh(x),
    "relax.cosh": lambda _, x: topi.cosh(x),
    "relax.round": lambda _, x: topi.round(x),
    # TVM says that it is of its image's type, and makes one of float32.
    "relax.image.grid_sample": _grid_sample,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.sum": _along(topi.sum),
    "relax.mean": _along(_mean),
    "relax.variance": _along(_variance),
    "relax.std": _along(lambda *given: topi.sqrt(_variance(*given))),
    # TVM counts elements in the type of an image, and 65,536 of them are infinite in float16.
    "relax.nn.instance_norm": _instance_norm,
    "relax.nn.softmax": lambda attrs, x: topi.nn.softmax(x, attrs.axis),
    "relax.nn.log_softmax": lambda attrs, x: topi.nn.log_softmax(x, attrs.axis),
    "relax.nn.avg_pool1d": _pool(topi.nn.pool1d),
    "relax.nn.avg_pool2d": _pool(topi.nn.pool2d),
    "relax.nn.avg_pool3d": _pool(topi.nn.pool3d),
    **{name: _adaptive(name, make) for name, make in _ADAPTIVE.items()},
}
#: Of several blocks TVM knows no pattern; a reduction, 3, is fused with what it adds up.
_PATTERNS = {"relax.sum": 3}
#: Functions that TVM makes of float16, in float32 where it matters, and refuses of bfloat16.
_OF_BFLOAT16: dict[str, Callable[..., te.Tensor]] = {
    "relax.power": lambda _, x, y: topi.power(x, y),
    "relax.isnan": lambda _, x: topi.isnan(x),
    "relax.isinf": lambda _, x: topi.isinf(x),
    "relax.isfinite": lambda _, x: topi.isfinite(x),
    "relax.log_add_exp": lambda _, x, y: topi.log_add_exp(x, y),
    "relax.nn.layer_norm": _layer_norm,
}
