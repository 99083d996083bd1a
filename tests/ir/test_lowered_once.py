"""What a check lowered is given once, to whoever builds the same function next."""

from __future__ import annotations

import tvm
from tvm import tirx

import tvm_layout_ext as tlx
from tests.tune.apply.test_apply import unscheduled
from tvm_layout_ext import pipeline
from tvm_layout_ext.ir import lowered_once

TARGET = tlx.cuda_target("sm_90a")


def bound(mod: tvm.IRModule, target: tvm.target.Target = TARGET) -> tvm.IRModule:
    return tirx.transform.BindTarget(target.with_host(tvm.target.Target("c")))(mod)


def kept() -> tuple[tvm.IRModule, tirx.PrimFunc]:
    with TARGET:
        mod = tlx.DefaultSchedule()(unscheduled(64))
    (made,) = [
        one for one in lowered_once._MADE.values() if one.source.body.same_as(mod["main"].body)
    ]
    return mod, made.lowered


def test_a_scheduled_function_is_not_lowered_again() -> None:
    mod, lowered = kept()
    named = tvm.IRModule({"copied": mod["main"].with_attr("global_symbol", "copied")})
    first = pipeline.run_first_half(bound(named))["copied"]
    assert first.body.same_as(lowered.body)
    assert first.attrs["global_symbol"] == "copied"
    assert first.attrs["target"].host.kind.name == "c"
    again = pipeline.run_first_half(bound(named))["copied"]
    assert not again.body.same_as(lowered.body)
    tvm.ir.assert_structural_equal(again.body, first.body, map_free_vars=True)


def test_other_options_and_other_gpus_lower_anew() -> None:
    mod, lowered = kept()
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        assert lowered_once.take(bound(mod)["main"]) is None
    assert lowered_once.take(bound(mod, tlx.cuda_target("sm_80"))["main"]) is None
    assert lowered_once.take(unscheduled(64)["main"]) is None
    assert lowered_once.take(bound(mod)["main"]).body.same_as(lowered.body)
