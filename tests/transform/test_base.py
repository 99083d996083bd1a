"""The law of all passes: a function without the mark is none of their business."""

from __future__ import annotations

import pytest
import tvm
from tvm import tirx
from tvm.script import tirx as T

from tvm_layout_ext import transform
from tvm_layout_ext.ir import contents as contents_module
from tvm_layout_ext.transform.base import asks_for, function_pass

#: These read what is asked for, and mark.
_FIRST = {"AutoCoalesce", "MarkAnnotated"}


@T.prim_func(s_tir=True)
def copy(a: T.handle, B: T.Buffer((64,), "int8")) -> None:
    o = T.int32()
    A = T.match_buffer(a, (64,), "int8", elem_offset=o, offset_factor=4)
    for x in T.thread_binding(4, "blockIdx.x"):
        for t in T.vectorized(16):
            with T.sblock("B"):
                B[x * 16 + t] = A[o + (x * 16 + 80 - t) % 64]


@pytest.mark.parametrize("name", sorted({*transform.__all__} - _FIRST))
def test_functions_without_the_mark_come_back_as_they_are(name: str) -> None:
    mod = tvm.IRModule({"main": copy})
    assert getattr(transform, name)()(mod)["main"].same_as(mod["main"])


#: Passes that a function asks for by an annotation beside the mark.
_ASKED = (
    "AttachEvictionPolicy", "AutoCoalesce", "CombineLayoutConversions", "FuseRows",
    "InjectMultiStageBuffer", "LaunchClusters", "LowerAsyncCopy", "LowerEvictionPolicy",
    "LowerFragment", "LowerTensorCore", "LowerWarpgroups", "PrefetchSharedToRegister",
    "RasterizeBlocks", "SetLaunchBounds", "ShiftVectors", "SwizzleSharedMemory",
)  # fmt: skip


@pytest.mark.parametrize("name", _ASKED)
def test_marked_functions_that_do_not_ask_come_back_as_they_are(name: str) -> None:
    mod = tvm.IRModule({"main": copy.with_attr("layout_ext.annotated", 1)})
    assert getattr(transform, name)()(mod)["main"].same_as(mod["main"])


@pytest.mark.parametrize(("marked", "asks"), [(True, True), (True, False), (False, True)])
def test_a_pass_runs_on_marked_functions_that_ask_for_it(marked: bool, asks: bool) -> None:
    @function_pass(asks="layout_ext.test" if asks else "layout_ext.other")
    def emptied(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tirx.Evaluate(0))

    func = tvm.s_tir.Schedule(copy)
    func.annotate(func.get_sblock("B"), "layout_ext.test", 1)
    main = func.mod["main"].with_attr("layout_ext.annotated", 1) if marked else func.mod["main"]
    assert asks_for(main, "layout_ext.test")
    after = emptied()(tvm.IRModule({"main": main}))["main"]
    assert after.body.same_as(main.body) != (marked and asks)


@pytest.mark.parametrize("name", ["tirx.exp", "tirx.sqrt"])
def test_a_pass_about_a_call_runs_on_functions_with_it(name: str) -> None:
    @T.prim_func(s_tir=True)
    def exponentials(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")) -> None:
        for i in range(8):
            B[i] = T.exp(A[i])

    @function_pass(calls=[name])
    def emptied(func: tirx.PrimFunc) -> tirx.PrimFunc:
        return func.with_body(tirx.Evaluate(0))

    main = exponentials.with_attr("layout_ext.annotated", 1)
    after = emptied()(tvm.IRModule({"main": main}))["main"]
    assert after.body.same_as(main.body) != (name == "tirx.exp")


def test_questions_about_a_body_walk_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    walked: list[object] = []
    walk = contents_module.nodes_in
    monkeypatch.setattr(contents_module, "nodes_in", lambda *of: walked.append(of) or walk(*of))
    assert not asks_for(copy.with_body(tirx.Evaluate(0)), "layout_ext.test")
    walked.clear()
    for key in ("layout_ext.test", "layout_ext.other"):
        assert not asks_for(copy, key)
    assert len(walked) == 1
