"""Every refusal is one sentence that says what would be legal, raised at the call if it can be."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import tirx
from tvm.ir import assert_structural_equal

import tvm_layout_ext as tlx
from tests.programs.stages import chain, row_sum
from tvm_layout_ext import ScheduleError, te


class _Case:
    """A matrix product with a cache, and an elementwise stage before it."""

    def __init__(self) -> None:
        self.A = te.placeholder((16, 16), name="A")
        self.k = te.reduce_axis((0, 16), "k")
        self.P = te.compute((16, 16), lambda i, j: self.A[i, j] + 1.0, name="P")
        self.C = te.compute(
            (16, 16), lambda i, j: te.sum(self.P[i, self.k] * self.A[self.k, j], self.k), name="C"
        )
        self.s = te.create_schedule(self.C.op)
        self.AA = self.s.cache_read(self.A, "shared", [self.C])
        self.i, self.j = self.C.op.axis

    @property
    def stage(self) -> Any:
        return self.s[self.C]

    @property
    def cache(self) -> Any:
        return self.s[self.AA]

    def split(self) -> None:
        self.stage.split(self.i, 4)

    def bind(self, axis: Any, tag: str = "threadIdx.x") -> Any:
        thread = te.thread_axis(tag)
        self.stage.bind(axis, thread)
        return thread


def _scan() -> Any:
    X, state = te.placeholder((4, 8), name="X"), te.placeholder((4, 8), name="state")
    first = te.compute((1, 8), lambda _, i: X[0, i], name="first")
    step = te.compute((4, 8), lambda t, i: state[t - 1, i] + X[t, i], name="step")
    return te.scan(first, step, state, inputs=[X])


def _cache_for_extern() -> None:
    A = te.placeholder((4,), name="A")
    B = te.extern((4,), [A], lambda ins, outs: tirx.call_packed("echo", ins[0], outs[0]), name="B")
    te.create_schedule(B.op).cache_read(A, "shared", [B])


_AT_THE_CALL: dict[str, tuple[Callable[[_Case], Any], str]] = {
    "unknown axis": (
        lambda c: c.stage.split(te.reduce_axis((0, 4), "z"), 2),
        "axis z is no axis of it; its axes are i, j, k",
    ),
    "axis of another stage": (
        lambda c: c.stage.split(c.AA.op.axis[0], 2),
        "axis ax0 is no axis of it; its axes are i, j, k",
    ),
    "used-up axis": (lambda c: (c.split(), c.split()), "axis i is used up by a split or fuse"),
    "no axis at all": (lambda c: c.stage.unroll(3), "needs an axis, not a int"),
    "factor zero": (lambda c: c.stage.split(c.i, 0), "split needs factor >= 1, not 0"),
    "negative factor": (lambda c: c.stage.split(c.i, factor=-4), "factor >= 1, not -4"),
    "negative parts": (lambda c: c.stage.split(c.i, nparts=-1), "nparts >= 1, not -1"),
    "float factor": (lambda c: c.stage.split(c.i, 2.5), "an integer factor, not 2.5"),
    "float constant": (
        lambda c: c.stage.split(c.i, tirx.const(2.0, "float32")),
        "split needs an integer factor",
    ),
    "bool factor": (lambda c: c.stage.split(c.i, True), "an integer factor, not True"),
    "huge factor": (lambda c: c.stage.split(c.i, 2**40), "factor <= 2147483647, not 1099511627776"),
    "tile of one axis": (lambda c: c.stage.tile(c.i, c.i, 2, 2), "two axes, not i twice"),
    "tile by zero": (lambda c: c.stage.tile(c.i, c.j, 4, 0), "factor >= 1, not 0"),
    "tile of a bound axis": (
        lambda c: (c.stage.vectorize(c.j), c.stage.tile(c.i, c.j, 4, 4)),
        "axis j is already vectorized",
    ),
    "neither": (lambda c: c.stage.split(c.i), "either factor or nparts; neither was given"),
    "both": (lambda c: c.stage.split(c.i, 4, 4), "either factor or nparts; both was given"),
    "thread twice": (
        lambda c: (c.bind(c.i), c.bind(c.j)),
        "threadIdx.x is already bound to axis i",
    ),
    "axis bound twice": (
        lambda c: (c.bind(c.i), c.bind(c.i, "threadIdx.y")),
        "axis i is already bound to threadIdx.x",
    ),
    "split of a bound axis": (
        lambda c: (c.bind(c.i), c.split()),
        "axis i is already bound to threadIdx.x",
    ),
    "fuse of a vector": (
        lambda c: (c.stage.vectorize(c.j), c.stage.fuse(c.i, c.j)),
        "axis j is already vectorized",
    ),
    "no thread": (lambda c: c.stage.bind(c.i, c.j), "needs a te.thread_axis of blockIdx.x"),
    "unknown thread": (
        lambda c: c.stage.bind(c.i, te.thread_axis("threadIdx.w")),
        "not threadIdx.w",
    ),
    "distant axes": (lambda c: c.stage.fuse(c.i, c.k), "neighbouring axes, outer first"),
    "wrong order": (lambda c: c.stage.fuse(c.j, c.i), "neighbouring axes, outer first"),
    "mixed axes": (lambda c: c.stage.fuse(c.j, c.k), "j, k mix reduction and data axes"),
    "fuse nothing": (lambda c: c.stage.fuse(), "C has i, j, k"),
    "axis named twice": (lambda c: c.stage.reorder(c.i, c.i), "names an axis twice: i, i"),
    "unknown scope": (lambda c: c.cache.set_scope("shard"), "Unknown storage scope 'shard'"),
    "scope of cache": (lambda c: c.s.cache_read(c.A, "smem", [c.C]), "known are global, shared"),
    "scope of output": (lambda c: c.stage.set_scope("local"), "C, an output of the schedule"),
    "at itself": (lambda c: c.cache.compute_at(c.cache, c.AA.op.axis[0]), "computed at itself"),
    "at a producer": (
        lambda c: c.s[c.P].compute_at(c.cache, c.AA.op.axis[0]),
        "cannot be computed at stage A.shared, which does not use it; legal are C",
    ),
    "output at": (lambda c: c.stage.compute_at(c.cache, c.AA.op.axis[0]), "C, an output"),
    "input at": (lambda c: c.s[c.A].compute_at(c.stage, c.i), "A, which is an input"),
    "at no stage": (lambda c: c.cache.compute_at(c.C, c.i), "needs a stage, s[tensor]"),
    "at a foreign axis": (
        lambda c: c.cache.compute_at(c.stage, c.AA.op.axis[0]),
        "axis ax0 is no axis of it; its axes are i, j, k",
    ),
    "inline a reduction": (
        lambda c: _middle_reduction().compute_inline(),
        "is a reduction, which cannot be inlined",
    ),
    "inline an output": (lambda c: c.stage.compute_inline(), "C, an output of the schedule"),
    "align leaf": (
        lambda c: c.cache.storage_align(c.cache.split(c.AA.op.axis[0], 2)[0], 32, 1),
        "an axis of its op.axis (ax0, ax1), not ax0.outer",
    ),
    "align factor": (
        lambda c: c.cache.storage_align(c.AA.op.axis[0], 0, 0),
        "factor >= 1 and an offset between -2147483647 and 2147483647, not factor 0 and offset 0",
    ),
    "align offset": (
        lambda c: c.cache.storage_align(c.AA.op.axis[0], 32, 2**31),
        "not factor 32 and offset 2147483648",
    ),
    "align type": (
        lambda c: c.cache.storage_align(c.AA.op.axis[0], 32, "auto"),
        "an int offset, not 'auto'",
    ),
    "align output": (lambda c: c.stage.storage_align(c.i, 32, 1), "C, an output"),
    "double_buffer elsewhere": (
        lambda c: c.s[c.P].double_buffer(),
        "a stage that cache_read made; P is none",
    ),
    "double_buffer zero": (
        lambda c: c.cache.double_buffer(0),
        "num_stages of double_buffer must be at least 1, not 0",
    ),
    "env_threads": (lambda c: c.stage.env_threads([]), "use s[stage].bind(axis, thread)"),
    "prefetch": (lambda c: c.stage.prefetch(c.A, c.i, 1), "double_buffer on the cache"),
    "predicate": (lambda c: c.stage.set_store_predicate("tx"), "thread.var.equal(0), not 'tx'"),
    "cache_read of an op": (lambda c: c.s.cache_read(c.A.op, "local", [c.C]), "needs a te.Tensor"),
    "cache_write of an op": (lambda c: c.s.cache_write(c.C.op, "local"), "needs a te.Tensor"),
    "rfactor of an op": (lambda c: c.s.rfactor(c.C.op, c.k), "needs a te.Tensor"),
    "rfactor at a float": (lambda c: c.s.rfactor(c.C, c.k, 1.0), "factor_axis < 3, not 1.0"),
    "no intrinsic": (lambda c: c.stage.tensorize(c.i, 3), "what te.decl_tensor_intrin gives"),
    "no stage": (lambda c: c.s[te.placeholder((4,), name="Z")], "has no stage Z; its stages are A"),
    "no tensor": (lambda c: c.s["Z"], "has no stage 'Z'"),
    "wrong reader": (lambda c: c.s.cache_read(c.P, "shared", [c.P]), "P was given and legal are C"),
    "no reader": (lambda c: c.s.cache_read(c.P, "shared", []), "an empty list was given"),
    "late cache_write": (
        lambda c: (c.split(), c.s.cache_write(c.C, "local")),
        "comes before its splits",
    ),
    "cache_write of input": (lambda c: c.s.cache_write(c.A, "local"), "which A is not"),
    "rfactor of data": (lambda c: c.s.rfactor(c.C, c.i), "needs a reduction axis (k), not i"),
    "rfactor position": (lambda c: c.s.rfactor(c.C, c.k, 3), "-3 <= factor_axis < 3, not 3"),
    "rfactor after bind": (lambda c: (c.bind(c.i), c.s.rfactor(c.C, c.k)), "before bindings"),
    "rfactor after split": (
        lambda c: (c.split(), c.s.rfactor(c.C, c.k)),
        "before the splits of its data axes",
    ),
    "no operation": (lambda c: te.create_schedule([]), "at least one operation"),
    "wrong operation": (lambda c: te.create_schedule("C"), "not a str"),
    "placeholder": (lambda c: te.create_schedule(c.A.op), "A is a placeholder, an input"),
    "scan": (lambda _: te.create_schedule(_scan().op), "a te.scan, which TensorIR cannot express"),
    "cache for extern": (lambda _: _cache_for_extern(), "what an extern operation reads"),
    "one tensor as arguments": (lambda c: c.s.to_module(c.A), "[A, B], not a Tensor"),
    "one tensor to lower": (lambda c: tlx.lower(c.s, c.A), "list of tensors and variables"),
    "argument twice": (lambda c: c.s.to_module([c.A, c.C, c.A]), "Argument 2, A, is there twice"),
    "number as argument": (lambda c: c.s.to_module([c.A, c.C, 3]), "Argument 2 has to be"),
    "name": (lambda c: c.s.to_module([c.A, c.C], "my kernel"), "not 'my kernel'"),
    "no name": (lambda c: c.s.to_module([c.A, c.C], None), "not None"),
    "missing argument": (lambda c: c.s.to_module([c.C]), "A are missing"),
    "foreign argument": (
        lambda c: c.s.to_module([c.A, c.C, te.compute((1,), lambda i: i, name="Z")]),
        "has no stage Z",
    ),
}


def _middle_reduction() -> Any:
    _, B, _, _ = row_sum(4, 4)
    C = te.compute((4,), lambda i: B[i] + 1.0, name="C")
    return te.create_schedule(C.op)[B]


@pytest.mark.parametrize("name", _AT_THE_CALL)
def test_refused_at_the_call(name: str) -> None:
    call, message = _AT_THE_CALL[name]
    with pytest.raises(ScheduleError, match=re.escape(message)) as caught:
        call(_Case())
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")


_WHEN_APPLIED: dict[str, tuple[Callable[[_Case], Any], str]] = {
    "thread axis of another extent": (
        lambda c: c.stage.bind(c.i, te.thread_axis((0, 8), "threadIdx.x")),
        "bind of i of C has 16 iterations and the thread axis threadIdx.x has 8; split by 8 first.",
    ),
    "parallel around a kernel": (
        lambda c: (c.stage.parallel(c.i), c.bind(c.j, "blockIdx.x")),
        "parallel of i of C is not legal around the loop j of C, which blockIdx.x runs; "
        "bind i to blockIdx or leave it serial.",
    ),
    "parallel around a kernel of an attached stage": (
        lambda c: (
            c.stage.parallel(c.i),
            c.s[c.P].compute_at(c.stage, c.i),
            c.s[c.P].bind(c.P.op.axis[1], te.thread_axis("blockIdx.x")),
        ),
        "parallel of i of C is not legal around the loop j of P",
    ),
    "compute_at a stage left to auto_coalesce": (
        lambda c: (c.s[c.P].compute_at(c.stage, c.i), c.stage.auto_coalesce()),
        "whose loops auto_coalesce makes anew",
    ),
    "store predicate of no reduction over threads": (
        lambda c: c.stage.set_store_predicate(c.bind(c.j).var.equal(0)),
        "use te.if_then_else in the compute",
    ),
}


@pytest.mark.parametrize("name", _WHEN_APPLIED)
def test_refused_when_applied(name: str) -> None:
    call, message = _WHEN_APPLIED[name]
    c = _Case()
    call(c)
    with pytest.raises(ScheduleError, match=re.escape(message)) as caught:
        c.s.to_module([c.A, c.C])
    assert "\n" not in str(caught.value)


def test_compute_at_that_leaves_out_a_consumer() -> None:
    _, B, C, _ = chain()
    D = te.compute((8, 8), lambda i, j: B[i, j] + C[i, j], name="D")
    s = te.create_schedule(D.op)
    s[B].compute_at(s[D], D.op.axis[0])
    with pytest.raises(ScheduleError, match=r"^TensorIR refuses compute_at of B at i of D: ") as e:
        _ = s.sch
    assert "\n" not in str(e.value)


def test_compute_at_an_inlined_stage() -> None:
    _, B, C, _ = chain()
    D = te.compute((8, 8), lambda i, j: C[i, j] - 1.0, name="D")
    s = te.create_schedule(D.op)
    s[B].compute_at(s[C], C.op.axis[0])
    s[C].compute_inline()
    with pytest.raises(ScheduleError, match="inlined and has no loops"):
        _ = s.sch


def test_unroll_of_a_symbolic_loop() -> None:
    n = te.var("n")
    A = te.placeholder((n,), name="A")
    B = te.compute((n,), lambda i: A[i], name="B")
    s = te.create_schedule(B.op)
    s[B].unroll(B.op.axis[0])
    with pytest.raises(ScheduleError, match="unroll of i of B needs a constant extent, not n"):
        _ = s.sch


def test_a_failed_tile_leaves_no_split_behind() -> None:
    c = _Case()
    with pytest.raises(ScheduleError):
        c.stage.tile(c.i, c.j, 4, 0)
    assert str(c.stage.leaf) == "i, j, k"
    c.stage.split(c.i, 4)


@pytest.mark.parametrize("number", [np.int64(4), np.uint8(4), tirx.IntImm("int32", 4)])
def test_numbers_of_numpy_and_tvm_are_integers(number: Any) -> None:
    modules = []
    for value in (4, number):
        c = _Case()
        c.stage.tile(c.i, c.j, value, value)
        c.stage.split(c.k, nparts=value)
        c.cache.compute_at(c.stage, c.stage.leaf[-2])
        c.cache.storage_align(c.AA.op.axis[0], 16, value)
        c.cache.double_buffer(value)
        modules.append(c.s.sch.mod)
    assert_structural_equal(*modules)
