"""Results are right where a condition cuts vectors."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tvm_layout_ext.analysis.nest import read_nest
from tvm_layout_ext.simulate import simulate

TYPES = ("int8", "float16", "float32")
ALL_TYPES = (*TYPES, "float64")


def padded(length: int, size: int, low: int, dtype: str) -> Any:
    """Two pads of one array: one begins at ``low``, the other at 0."""

    @T.prim_func(s_tir=True)
    def func(
        A: T.Buffer((length,), dtype), B: T.Buffer((size,), dtype), C: T.Buffer((size,), dtype)
    ) -> None:
        for i in T.serial(size):
            with T.sblock("B"):
                vi = T.axis.spatial(size, i)
                B[vi] = T.if_then_else(
                    vi >= low and vi < length + low, A[vi - low], T.Cast(dtype, 0)
                )
                C[vi] = T.if_then_else(vi < length, A[vi], T.Cast(dtype, 1))

    return func


def two_strides(rows: int, columns: int, strides: tuple[int, int], dtype: str) -> Any:
    """A copy between buffers whose rows lie further apart than they are long."""

    @T.prim_func(s_tir=True)
    def func(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (rows, columns), dtype, strides=(strides[0], 1))
        B = T.match_buffer(b, (rows, columns), dtype, strides=(strides[1], 1))
        for i, j in T.grid(rows, columns):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]

    return func


def sums(shape: tuple[int, int], axis: int, dtype: str) -> Any:
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")
    rows = te.compute(
        (shape[1 - axis],), lambda i: te.sum(a[i, k] if axis == 1 else a[k, i], axis=k), "B"
    )
    return te.create_prim_func([a, rows])


def greatest(shape: tuple[int, int], axis: int, dtype: str) -> Any:
    """Max and where it is first, two results of one reduction."""

    def combine(x: Any, y: Any) -> Any:
        first = tirx.Or(x[1] > y[1], tirx.And(x[1] == y[1], x[0] < y[0]))
        return tirx.Select(first, x[0], y[0]), tirx.Select(x[1] > y[1], x[1], y[1])

    argmax = te.comm_reducer(combine, lambda i, v: (tirx.const(-1, i), tirx.min_value(v)))
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")
    of = lambda i: argmax((k.var, a[i, k] if axis == 1 else a[k, i]), axis=k)  # noqa: E731
    return te.create_prim_func([a, *te.compute((shape[1 - axis],), of, "B")])


def moved(rng: random.Random, kind: str, dtype: str) -> Any:
    """A pad of 1, 2 or 3 dims with a row added to it, a slice, or a transposed slice."""
    rank = 2 if kind == "turned" else rng.randint(1, 3)
    shape = [rng.randint(2, 6) for _ in range(rank - 1)]
    shape.append(rng.choice((rng.randint(10, 200), 8 * rng.randint(2, 25))))
    low = [rng.choice((0, 1, 2, 4)) for _ in shape]
    high = [rng.choice((0, 1, 3, 4)) for _ in shape]
    whole = [n + a + b for n, a, b in zip(shape, low, high, strict=True)]
    if kind == "pad":
        a, row = te.placeholder(shape, dtype, "A"), te.placeholder((whole[-1],), dtype, "C")

        def element(*at: Any) -> Any:
            inside = (tirx.all(i >= b, i < n + b) for i, b, n in zip(at, low, shape, strict=True))
            held = a[tuple(i - b for i, b in zip(at, low, strict=True))]
            zero = tirx.const(0, dtype)
            return tirx.if_then_else(tirx.all(*inside), held, zero) + row[at[-1]]

        return te.create_prim_func([a, row, te.compute(whole, element, "B")])
    a = te.placeholder(whole, dtype, "A")
    turn = list(reversed(range(rank))) if kind == "turned" else list(range(rank))
    to = [shape[dim] for dim in turn]
    body = te.compute(to, lambda *at: a[tuple(at[turn[d]] + low[d] for d in range(rank))], "B")
    return te.create_prim_func([a, body])


def shifted(rows: int, columns: int, shift: int, dtype: str) -> Any:
    a = te.placeholder((rows, columns), dtype, "A")
    zero = tirx.const(0, dtype)
    b = te.compute(
        (rows, columns),
        lambda i, j: tirx.if_then_else(j + shift < columns, a[i, j + shift], zero),
        "B",
    )
    return te.create_prim_func([a, b])


def values(func: Any) -> list[Any]:
    """Arrays for the inputs and for results with strides, None for the other results."""
    rng, arrays = np.random.default_rng(0), []
    for buffer in func.params:
        shape, strides = ([int(n) for n in part] for part in (buffer.shape, buffer.ty.strides))
        given = rng.integers(1, 9, shape).astype(str(buffer.dtype))
        if strides:
            steps = [stride * given.itemsize for stride in strides]
            held = np.zeros(shape[0] * strides[0], given.dtype)
            view = np.lib.stride_tricks.as_strided(held, shape, steps)
            view[...] = given
            given = view
        arrays.append(given if strides or is_input(func, buffer) else None)
    return arrays


def is_input(func: Any, buffer: Any) -> bool:
    plain = s_tir.Schedule(func)
    nest = read_nest(plain, plain.get_sblock("B"))
    return all(a.kind == "load" for a in nest.accesses if a.buffer.same_as(buffer))


def as_it_was(func: Any) -> Any:
    """Fuse the loops of the results over blocks of 128 threads, one element a lane."""
    sch = s_tir.Schedule(func)
    data = [
        ref
        for ref, loop in zip(
            sch.get_loops("B"), read_nest(sch, sch.get_sblock("B")).loops, strict=True
        )
        if not loop.is_reduction
    ]
    fused = sch.fuse(*data) if len(data) > 1 else data[0]
    block, thread = sch.split(fused, [None, 128])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return sch


def check(func: Any, stage: str = "auto") -> Any:
    """Map a block, and compare it with its loops fused over the threads."""
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce("B", stage=stage)
    report = simulate(sch, *values(func))
    assert report.hazards == []
    for name, value in simulate(as_it_was(func), *values(func)).outputs.items():
        np.testing.assert_array_equal(report.outputs[name], value)
    return outcome


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(12))
def test_pads_of_several_stores_are_mapped_right(seed: int) -> None:
    rng = random.Random(seed)
    length, low = rng.randint(40, 700), rng.choice((0, 2, 3, 4, 8))
    check(padded(length, length + low + rng.randint(0, 40), low, rng.choice(TYPES)))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(12))
def test_ragged_choices_are_mapped_right(seed: int) -> None:
    rng = random.Random(100 + seed)
    columns = 8 * rng.randint(2, 40)
    check(shifted(rng.randint(1, 6), columns, rng.choice((1, 2, 4, 8, 16)), rng.choice(TYPES)))


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_strided_buffers_are_mapped_right(seed: int) -> None:
    rng = random.Random(200 + seed)
    columns = rng.choice((rng.randint(10, 120), 8 * rng.randint(2, 15)))
    strides = columns + rng.choice((0, 2, 4, 6)), columns + rng.choice((1, 2, 4, 6))
    check(two_strides(rng.randint(2, 20), columns, strides, rng.choice(ALL_TYPES)))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["pad", "slice", "turned"])
def test_pads_and_slices_are_mapped_right(kind: str, seed: int) -> None:
    rng = random.Random(300 + seed)
    check(moved(rng, kind, rng.choice(ALL_TYPES)))


@pytest.mark.parametrize("seed", range(6))
def test_sums_are_mapped_right(seed: int) -> None:
    rng = random.Random(400 + seed)
    shape = rng.randint(2, 60), rng.choice((rng.randint(10, 200), 8 * rng.randint(2, 25)))
    check(sums(shape, rng.randint(0, 1), rng.choice(("int8", "float32"))))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(8))
def test_reductions_to_several_results_are_mapped_right(seed: int) -> None:
    rng = random.Random(500 + seed)
    shape = rng.randint(2, 60), rng.choice((rng.randint(10, 200), 8 * rng.randint(2, 25)))
    dtype = rng.choice(("int8", "float16", "float32"))
    check(greatest(shape, rng.randint(0, 1), dtype))


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(60))
def test_any_block_is_mapped_right(seed: int) -> None:
    rng = random.Random(1000 + seed)
    dtype = rng.choice(ALL_TYPES)
    length = rng.choice((rng.randint(10, 300), 8 * rng.randint(2, 40)))
    low = rng.choice((0, 1, 2, 3, 4, 8))
    kind = rng.choice(("pads", "choice", "strides", "sums", "pad", "slice", "turned"))
    if kind == "pads":
        check(padded(length, length + low + rng.randint(0, 40), low, dtype))
    elif kind == "choice":
        check(shifted(rng.randint(1, 6), length, rng.choice((0, 1, 2, 4, 5, 8)), dtype))
    elif kind == "strides":
        strides = length + rng.randint(0, 9), length + rng.randint(0, 9)
        check(two_strides(rng.randint(2, 20), length, strides, dtype))
    elif kind == "sums":
        check(sums((rng.randint(2, 60), length), rng.randint(0, 1), "int8"))
    else:
        check(moved(rng, kind, dtype))
