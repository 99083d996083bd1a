"""``WeightsAsRows``: what a single row is multiplied by is stored N x K, where it is a constant."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax

from ...ir.queries import nodes_of
from ...ir.replace_calls import with_calls_replaced
from ..relax_values import dims_of, name_of


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.WeightsAsRows")
class WeightsAsRows:
    """Turn constants K x N that one row is multiplied by, as those of GPT-2 and ONNX.

    Terms of a sum are side by side then, as in a layer of torch: a few lanes add them up in vectors
    (``fuse_rows``), and load them before the row is there. Products of more rows go to tensor
    cores, which take both.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        found = {
            gv: [(one, partial(_turned, one)) for one in nodes_of(func) if _is_row_by_constant(one)]
            for gv, func in mod.functions_items()
        }
        return with_calls_replaced(mod, found) if any(found.values()) else mod


def _is_row_by_constant(call: Any) -> bool:
    if name_of(call) != "matmul" or not isinstance(call.args[1], tvm.ir.Constant):
        return False
    rows, weight = (dims_of(one) for one in call.args)
    return rows is not None and prod(rows[:-1]) == 1 and weight is not None and len(weight) == 2


def _turned(call: relax.Call, inside: Any) -> relax.Expr:
    """The same product by a weight N x K."""
    x, weight = call.args
    known = relax.const(np.ascontiguousarray(weight.value.numpy().T), str(weight.ty.dtype))
    back = inside.builder_.emit(relax.op.permute_dims(known, [1, 0]))
    return relax.Call(call.op, [inside.visit_expr(x), back], call.attrs, call.ty_args)
