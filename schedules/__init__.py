"""Ready schedules, one operator a file; each file ends in its ``OPERATOR``.

To write one, copy the file nearest to it and add its name to :data:`FILES`.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

from tvm_layout_ext.tune.space.operator import Operator, register_maker, register_operator

__all__ = ["FILES"]

#: Files of this folder that hold an operator each.
FILES = (
    "attention",
    "attention_biased",
    "attention_causal",
    "cast_transpose",
    "column_sum",
    "conv2d",
    "conv2d_strided",
    "depthwise_conv2d",
    "elementwise",
    "gather_rows",
    "gemm",
    "gemm_gated",
    "gemm_nt",
    "gemm_scaled",
    "grouped_gemm",
    "layer_norm",
    "matmul",
    "nchw_to_nhwc",
    "pad",
    "permute",
    "ragged_attention",
    "ragged_causal",
    "rms_norm",
    "row_sum",
    "slice",
    "softmax",
    "stencil",
    "stream_reduce",
    "transpose",
)


def _operator(name: str) -> Operator:
    # Imported when first asked for: a command needs one of them.
    operator = importlib.import_module(f"{__name__}.{name}").OPERATOR
    assert isinstance(operator, Operator)
    return operator


def _of_function(*arguments: Any, **options: Any) -> Operator:
    made = importlib.import_module(f"{__name__}._generic").operator_of(*arguments, **options)
    assert isinstance(made, Operator)
    return made


for _name in FILES:
    register_operator(_name, partial(_operator, _name))
register_maker(_of_function)
