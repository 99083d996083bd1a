"""Maxima and minima of bytes by halves of words: what is packed, what is left, what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir
from tvm.script import tirx as T

from tests.programs.emitted import cuda_text
from tvm_layout_ext import te
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.transform import PackExtremes

SHAPES = [
    ((37, 3, 16), (0,)),
    ((5, 37, 24), (1,)),
    ((6, 208, 8), (1, 2)),
    ((6, 77), (1,)),
    ((6, 1003), (1,)),
    ((8, 1024), (1,)),
    ((3001, 36), (0,)),
    ((300, 1000), (0, 1)),
]


def extreme(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, pick: str) -> Any:
    a = te.placeholder(shape, dtype, "A")
    summed = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}
    kept = [n for axis, n in enumerate(shape) if axis not in axes] or [1]

    def value(*i: Any) -> Any:
        free = iter(i)
        at = [summed[axis] if axis in axes else next(free) for axis in range(len(shape))]
        return getattr(te, pick)(a[tuple(at)], axis=list(summed.values()))

    return te.create_prim_func([a, te.compute(kept, value, "B")])


def scheduled(func: Any) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    sch.auto_coalesce("B")
    return sch


def drawn(shape: tuple[int, ...], dtype: str) -> Any:
    ends = np.iinfo(dtype)
    return np.random.default_rng(2).integers(ends.min, ends.max + 1, shape).astype(dtype)


@pytest.mark.matrix
@pytest.mark.parametrize("pick", ["max", "min"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_extremes_are_numpys(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, pick: str
) -> None:
    sch, value = scheduled(extreme(shape, axes, dtype, pick)), drawn(shape, dtype)
    report = simulate(sch, value, None)
    assert not report.hazards
    (got,) = report.outputs.values()
    want = getattr(value, pick)(axes)
    np.testing.assert_array_equal(got, want.reshape(got.shape))


@pytest.mark.parametrize(("shape", "axes"), [SHAPES[0], SHAPES[5]])
@pytest.mark.parametrize(
    ("dtype", "pick", "name"),
    [("int8", "max", "__vmaxs2"), ("uint8", "min", "__vminu2"), ("uint8", "max", "__vmaxu2")],
)
def test_halves_of_words_are_compared(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, pick: str, name: str
) -> None:
    assert name in cuda_text(scheduled(extreme(shape, axes, dtype, pick)))


def test_older_gpus_have_no_such_instruction() -> None:
    sch = scheduled(extreme((8, 1024), (1,), "int8", "max"))
    assert "__vmax" not in cuda_text(sch, cuda_target("sm_80"))


def test_other_types_are_left() -> None:
    for dtype in ("int16", "int32", "float16"):
        assert "__vmax" not in cuda_text(scheduled(extreme((8, 1024), (1,), dtype, "max")))


def packed(func: Any) -> str:
    func = func.with_attr("target", cuda_target("sm_90a"))
    return str(PackExtremes()(tvm.IRModule({"main": func}))["main"].script())


def test_bytes_that_begin_inside_of_a_word_are_left() -> None:
    @T.prim_func(s_tir=True)
    def inside(B: T.Buffer((4,), "int8")) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        a = T.alloc_buffer((12,), "int8", scope="local")
        b = T.alloc_buffer((8,), "int8", scope="local")
        for i in T.unroll(4):
            b[i] = T.max(b[i], a[i + 2])
        for i in T.unroll(3):
            b[i] = T.max(b[i], a[i])
        for i in T.unroll(4):
            if i < 3:
                b[i] = T.max(b[i], a[i])
        for i in T.unroll(4):
            b[i] = T.max(b[i], a[8 - i])
        B[0] = b[0]

    assert "__vmax" not in packed(inside)


def test_a_condition_of_all_bytes_stays_around_them() -> None:
    @T.prim_func(s_tir=True)
    def guarded(B: T.Buffer((4,), "int8"), n: T.int32) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        a = T.alloc_buffer((12,), "int8", scope="local")
        b = T.alloc_buffer((8,), "int8", scope="local")
        for i in T.unroll(4):
            if n < 3:
                b[i] = T.max(a[i + 4], b[i])
        B[0] = b[0]

    text = packed(guarded)
    assert text.count("if n < 3") == 1
    assert text.count("__vmaxs2") == 2


def test_results_that_are_read_between_bytes_are_left() -> None:
    @T.prim_func(s_tir=True)
    def told(B: T.Buffer((4,), "int8")) -> None:
        T.func_attr({"layout_ext.annotated": 1})
        a = T.alloc_buffer((1024,), "int8", scope="local")
        b = T.alloc_buffer((1,), "int8", scope="local")
        for i in T.unroll(16):
            if b[0] < T.int8(50):
                b[0] = T.max(b[0], a[i])
        for i in T.unroll(16):
            b[0] = T.max(b[0], a[T.int32(b[0]) * 4 + i])
        B[0] = b[0]

    assert "__vmax" not in packed(told)
