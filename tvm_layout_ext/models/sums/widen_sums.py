"""Products of 16-bit floats are added up in float32, as cuBLAS and PyTorch do."""

from __future__ import annotations

import inspect
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from ..relax_values import NARROW_FLOATS, rewritten


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WidenSums")
class WidenSums:
    """Give each ``matmul`` and convolution of 16-bit floats sums of 32 bits, and cast its result.

    Tensor cores are as fast with either. Sums of 16 bits lose bits with each step along K, and
    bfloat16 has none on tensor cores.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        return rewritten(mod, _Widen)


@mutator
class _Widen(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        call = super().visit_call_(call)
        make = _MAKERS.get(str(getattr(call.op, "name", "")))
        if make is None:
            return call
        # ToMixedPrecision names the type of the result also where it is the operands'.
        types = {str(getattr(one.ty, "dtype", "")) for one in (*call.args, call)}
        if len(types) != 1 or not types & set(NARROW_FLOATS):
            return call
        wide = self.builder_.emit(make(call))
        return relax.op.astype(wide, types.pop())


def _matmul(call: relax.Call) -> relax.Expr:
    return relax.op.matmul(*call.args, out_dtype="float32")


def _convolution(call: relax.Call) -> relax.Expr:
    make = getattr(relax.op.nn, str(call.op.name).removeprefix("relax.nn."))
    names = [name for name in inspect.signature(make).parameters if hasattr(call.attrs, name)]
    attrs = {name: getattr(call.attrs, name) for name in names}
    return make(*call.args, **attrs | {"out_dtype": "float32"})


_CONVOLUTIONS = (f"relax.nn.conv{dims}d{how}" for dims in (1, 2, 3) for how in ("", "_transpose"))
_MAKERS = {"relax.matmul": _matmul, **dict.fromkeys(_CONVOLUTIONS, _convolution)}
