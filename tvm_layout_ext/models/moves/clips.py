"""Clips are written as a maximum and a minimum, which TVM's passes know."""

from __future__ import annotations

from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@mutator
class Clips(PyExprMutator):
    """Rewrites ``clip`` and ``relu6`` of floating point.

    ``ConvertLayout`` moves no layout past a clip, and ``ToMixedPrecision`` fails at one. NaN stays
    NaN in 16 bits, of which CUDA takes the second operand where neither is larger. In 32 bits its
    ``fmaxf`` gives the lower end, whatever the order, and a choice is an instruction more.
    """

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        """Rewrite a call."""
        call = super().visit_call_(call)
        name, dtype = getattr(call.op, "name", ""), str(getattr(call.ty, "dtype", ""))
        if "float" not in dtype or name not in ("relax.clip", "relax.nn.relu6"):
            return call
        given = [getattr(one, "value", None) for one in call.args[1:]] or [0.0, 6.0]
        ends = [float(one) for one in given if isinstance(one, int | float)]
        if len(ends) < 2:
            return call
        least, most = (relax.const(end, dtype) for end in ends)
        return relax.op.minimum(most, self.builder_.emit(relax.op.maximum(least, call.args[0])))
