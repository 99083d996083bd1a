"""Convolutions go to channels-last layouts, in which neighbours in memory are summed."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from .. import decisions

#: Elements that a thread copies at a time; rows of fewer channels are no better than columns.
_VECTORS = {"float16": 8, "bfloat16": 8, "float32": 4}


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ChannelsLast")
class ChannelsLast:
    """Let ``conv2d`` read and write NHWC, where threads copy whole vectors of channels.

    TVM's pass moves the permutations as far as they go, so that a chain of convolutions is permuted
    at both of its ends. Weights that are constants are permuted while compiling.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Rewrite the Relax functions of a module."""
        try:
            moved = relax.transform.ConvertLayout({}, _layouts)(mod)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
            text = f"Convolutions keep their layouts; ConvertLayout fails: {reason}"
            decisions.note("fused", "ConvertLayout", text, refused=True)
            return mod
        return relax.transform.EliminateCommonSubexpr()(moved)


def _layouts(call: relax.Call) -> dict[str, list[str]]:
    """The layouts that a call shall have; none where it keeps its own."""
    if call.op != tvm.ir.Op.get("relax.nn.conv2d") or call.attrs.groups != 1:
        return {}
    if call.attrs.data_layout != "NCHW" or call.attrs.kernel_layout != "OIHW":
        return {}
    image, weight = (one.ty for one in call.args)
    vector = _VECTORS.get(str(image.dtype))
    if vector is None or not hasattr(weight.shape, "values"):
        return {}
    channels = [n for n in weight.shape.values[:2] if isinstance(n, tvm.tirx.IntImm)]
    if len(channels) < 2 or any(int(n) % vector for n in channels):
        return {}
    return {"relax.nn.conv2d": ["NHWC", "OHWI"]}
