"""What the pipeline says of functions of a model, for their launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from tvm_layout_ext.ir.annotations import CONSTANTS, IN_SEQUENCE
from tvm_layout_ext.transform.launch.in_sequence import InSequence


def calls(*weights: Any) -> tvm.IRModule:
    """A function that adds each weight to a value in turn; None stands for a parameter."""
    kind = relax.TensorType([64, 64], "float32")
    x, given = relax.Var("x", kind), relax.Var("given", kind)
    builder = relax.BlockBuilder()
    with builder.function("main", [x, given]):
        with builder.dataflow():
            value: Any = x
            for weight in weights:
                value = builder.emit(relax.op.add(value, given if weight is None else weight))
            out = builder.emit_output(value)
        builder.emit_func_output(out)
    return relax.transform.LegalizeOps()(builder.get())


def told(mod: tvm.IRModule) -> list[int]:
    (func,) = (one for gv, one in InSequence()(mod).functions.items() if gv.name_hint == "add")
    assert func.attrs[IN_SEQUENCE]
    return [int(one) for one in func.attrs[CONSTANTS]]


def weight() -> Any:
    return relax.const(np.ones((64, 64), "float32"))


def test_a_parameter_that_is_always_a_constant_is_one() -> None:
    assert told(calls(weight(), weight())) == [1]


def test_one_call_with_another_value_makes_it_none() -> None:
    assert told(calls(weight(), None)) == []
    assert told(calls(None)) == []


def test_the_weights_of_a_row_reach_the_kernel_before_its_wait() -> None:
    x = relax.Var("x", relax.TensorType([1, 1024], "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            held = relax.const(np.ones((1024, 512), "float16"))
            out = builder.emit_output(builder.emit(relax.op.matmul(x, held)))
        builder.emit_func_output(out)
    target = tlx.cuda_target("sm_90a")
    built = tvm.compile(builder.get(), target, relax_pipeline=tlx.relax_pipeline(target))
    (source,) = (one.inspect_source() for one in built.mod.imports[0].imports)
    *_, body = source.split("__global__")
    early, late = body.split("griddepcontrol_wait();")
    assert early.count("uint4*)") > 0
    assert "__restrict__" not in early
    assert "x_ptr +" in late
    assert "x_ptr +" not in early
