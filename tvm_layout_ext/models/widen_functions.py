"""Functions such as ``exp`` and ``softmax`` of 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi

from .relax_values import NARROW_FLOATS


def legalize_ops() -> tvm.transform.Pass:
    """TVM's ``LegalizeOps``, with functions of 16-bit floats that are computed in float32.

    TVM rounds each step of such a function to 16 bits, and adds up a softmax in them: sums of more
    than 2048 ones stand still in float16. PyTorch computes in float32 and rounds once, which is
    also faster: a division of halves is one of floats, with checks.
    """
    return relax.transform.LegalizeOps(dict.fromkeys(_FUNCTIONS, _legalize))


def _legalize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    name = str(call.op.name)
    if str(call.ty.dtype) not in NARROW_FLOATS:
        return call.op.get_attr("FLegalize")(builder, call)

    def wide(value: te.Tensor) -> te.Tensor:
        made = _FUNCTIONS[name](topi.cast(value, "float32"), call.attrs)
        return topi.cast(made, value.dtype)

    return builder.call_te(wide, call.args[0], primfunc_name_hint=name.rsplit(".", 1)[-1])


def _silu(x: te.Tensor, _attrs: Any) -> te.Tensor:
    return x * topi.sigmoid(x)


def _gelu(x: te.Tensor, _attrs: Any) -> te.Tensor:
    return x * (0.5 + 0.5 * topi.erf(x * 0.5**0.5))


def _gelu_tanh(x: te.Tensor, _attrs: Any) -> te.Tensor:
    # Half of 1 + tanh(x) is the sigmoid of 2 x.
    return x * topi.sigmoid(2 * 0.7978845608028654 * x * (1 + 0.044715 * x * x))


_FUNCTIONS: dict[str, Callable[[te.Tensor, Any], te.Tensor]] = {
    "relax.exp": lambda x, _: topi.exp(x),
    "relax.log": lambda x, _: topi.log(x),
    "relax.sigmoid": lambda x, _: topi.sigmoid(x),
    "relax.tanh": lambda x, _: topi.tanh(x),
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
    "relax.nn.softmax": lambda x, attrs: topi.nn.softmax(x, attrs.axis),
    "relax.nn.log_softmax": lambda x, attrs: topi.nn.log_softmax(x, attrs.axis),
}
