"""Schedules of one's own as functions of arrays, and the search for their knobs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.calls import decorated
from tvm_layout_ext.errors import ScheduleError

RNG = np.random.default_rng(0)
THREADS = tlx.knob("threads", (64, 128, 256))


def doubled(A: Any, *, threads: int | None = None) -> Any:
    B = te.compute(A.shape, lambda *at: A[at] * 2, name="B")
    s = te.create_schedule(B.op)
    s[B].auto_coalesce(num_threads=threads)
    return s


def product(A: Any, B: Any, *, stages: int = 2) -> Any:
    (m, k), n = A.shape, B.shape[1]
    along = te.reduce_axis((0, k), name="k")
    C = te.compute(
        (m, n),
        lambda i, j: te.sum(A[i, along].astype("float32") * B[along, j].astype("float32"), along),
        name="C",
    )
    func = te.create_prim_func([A, B, C])
    sch = s_tir.Schedule(func)
    sch.gemm("C", tile=(64, 64, 32), warps=(2, 2), stages=stages)
    return func, sch


def test_a_te_schedule_is_a_function_of_arrays() -> None:
    function = tlx.kernel(doubled)
    a = RNG.random((8, 64), np.float32)
    assert (function(a) == a * 2).all()
    assert (function(tvm.runtime.tensor(a)).numpy() == a * 2).all()
    assert function.kernel(a) is function.kernel(a + 1)
    assert function.kernel(a) is not function.kernel(a, threads=64)
    assert function.__name__ == "doubled"


def test_kernels_are_shown_by_what_they_take() -> None:
    function = tlx.kernel(doubled)
    assert repr(function) == "<doubled(A, *, threads)>"
    assert repr(function.kernel(np.ones((4, 32), "float32"))).startswith(
        "<doubled(A 4x32 float32) -> B 4x32 float32; sm_"
    )


def test_a_tensorir_schedule_is_one_too() -> None:
    a, b = RNG.random((64, 32)).astype("float16"), RNG.random((32, 64)).astype("float16")
    found = tlx.kernel(product)(a, b, stages=3)
    assert np.allclose(found, a.astype("f") @ b.astype("f"), rtol=1e-3)


def test_a_search_is_done_once_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[Any] = []
    monkeypatch.setattr(
        decorated,
        "tune",
        lambda func, **options: searched.append(options) or tlx.tune(func, **options),
    )
    function = tlx.autotune(knobs=[THREADS], trials=3)(doubled)
    a = RNG.random((8, 64), np.float32)
    for array in (a, a + 1, a[:4]):
        assert (function(array) == array * 2).all()
    assert len(searched) == 2
    first, _ = function.results.values()
    assert {t.config["threads"] for t in first.trials} == {64, 128, 256}
    # Another process finds the trials.
    again = tlx.autotune(knobs=[THREADS], trials=3)(tlx.kernel(doubled))
    again(a)
    (found,) = again.results.values()
    assert found.resumed == 3


def test_a_call_may_name_every_knob_and_then_nothing_is_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decorated, "tune", lambda *_, **__: pytest.fail("searched"))
    function = tlx.autotune(knobs=[THREADS])(doubled)
    assert (function(np.ones((8, 64), "float32"), threads=64) == 2).all()


def test_a_key_says_what_is_searched_anew() -> None:
    function = tlx.autotune(knobs=[THREADS], trials=1, key=lambda a: a.shape[1])(doubled)
    for rows in (4, 8):
        function(np.ones((rows, 64), "float32"))
    assert list(function.results) == [64]


def test_a_tensorir_schedule_is_searched() -> None:
    function = tlx.autotune(knobs=[tlx.knob("stages", (2, 3))], trials=2)(product)
    a, b = RNG.random((64, 32)).astype("float16"), RNG.random((32, 64)).astype("float16")
    assert np.allclose(function(a, b), a.astype("f") @ b.astype("f"), rtol=1e-3)
    (found,) = function.results.values()
    assert len(found.trials) == 2


def bare(A: Any, *, threads: int = 64) -> Any:
    B = te.compute(A.shape, lambda *at: A[at] * 2, name="B")
    sch = s_tir.Schedule(te.create_prim_func([A, B]))
    sch.auto_coalesce("B", num_threads=threads)
    return sch


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a: tlx.kernel(doubled)(a, a), r"doubled takes 1 arrays \(A\), not 2"),
        (lambda a: tlx.kernel(doubled)(a, wide=1), "no keyword wide; it has threads"),
        (lambda a: tlx.kernel(lambda A: None)(a), "returned a NoneType; a schedule is wanted"),
        (lambda a: tlx.kernel(3), "@kernel decorates a function, not 3"),
        (lambda a: tlx.autotune(knobs=[tlx.knob("x", (1,))])(doubled), "doubled has no keyword x"),
        (lambda a: tlx.autotune(knobs=[THREADS], trials=0), "The number of trials"),
        (lambda a: tlx.autotune(knobs=[]), "knobs are a list made by tlx.knob"),
        (lambda a: tlx.autotune(knobs=["threads"]), "knobs are a list made by tlx.knob"),
        (lambda a: tlx.autotune(knobs=[THREADS], key=3), "key is a function of the arrays, not 3"),
        (lambda a: tlx.autotune(knobs=[THREADS])(bare)(a), "return func, sch"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call: Any, text: str) -> None:
    with pytest.raises(ScheduleError, match=text) as caught:
        call(np.ones((8, 64), "float32"))
    assert "\n" not in str(caught.value)
