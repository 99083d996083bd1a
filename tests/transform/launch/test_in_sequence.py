"""What the pipeline says of functions of a model, for their launches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

import tvm_layout_ext as tlx
from tests.programs.relaxed import relax_module
from tvm_layout_ext.ir.annotations import CONSTANTS, IN_SEQUENCE
from tvm_layout_ext.transform.launch.in_sequence import InSequence


def calls(*weights: Any) -> tvm.IRModule:
    """A function that adds each weight to a value in turn; None stands for a parameter."""

    def build(value: Any, given: Any) -> Any:
        for weight in weights:
            value = relax.op.add(value, given if weight is None else weight)
        return value

    return relax.transform.LegalizeOps()(relax_module(build, *[(64, 64)] * 2, dtype="float32"))


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
    held = relax.const(np.ones((1024, 512), "float16"))
    mod = relax_module(lambda x: relax.op.matmul(x, held), x=(1, 1024))
    target = tlx.cuda_target("sm_90a")
    built = tvm.compile(mod, target, relax_pipeline=tlx.relax_pipeline(target))
    (source,) = (one.inspect_source() for one in built.mod.imports[0].imports)
    *_, body = source.split("__global__")
    early, late = body.split("griddepcontrol_wait();")
    assert early.count("uint4*)") > 0
    assert "__restrict__" not in early
    assert "x_ptr +" in late
    assert "x_ptr +" not in early
