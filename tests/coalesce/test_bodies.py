"""Blocks with ``if`` and ``let`` statements, with two results, and with one loop for all dims."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx
from tvm.script import tirx as T

from tests.programs.coalesced import few, mapped, nests, sectors, widths
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate.report import Report


def run(func: Any, *arrays: Any, stage: str = "auto") -> tuple[Any, Report]:
    """Map block B to what takes no longer than before, but for what a launch may."""
    outcome, report = mapped(func, *arrays, stage=stage)
    assert outcome.seconds <= 2 * outcome.seconds_before
    return outcome, report


F32 = "float32"


@dataclass(frozen=True)
class Row:
    """A block of spatial iterators, ``vi`` of loop ``i``, and what comes of it."""

    shapes: dict[str, tuple[tuple[int, ...], str]]  #: Of the parameters; the last is written
    loops: dict[str, int]  #: Outermost first
    body: str
    want: Callable[..., np.ndarray]  #: Of the parameters that are read, and of the last before
    path: str = "direct"
    lanes: int | None = None  #: Bytes of an access of A and of B
    loaded: int | None = None  #: Sectors of A
    said: str = ""

    def function(self) -> Any:
        """The block as a function."""
        params = ", ".join(f'{n}: T.Buffer({s}, "{t}")' for n, (s, t) in self.shapes.items())
        lines = [f"v{name} = T.axis.spatial({n}, {name})" for name, n in self.loops.items()]
        lines += [*self.body.splitlines()]
        heads = ", ".join(self.loops), ", ".join(map(str, self.loops.values()))
        text = (
            "@T.prim_func(s_tir=True)\ndef main({}):\n    for {} in T.grid({}):\n        with {}\n"
        )
        text = text.format(params, *heads, 'T.sblock("B"):')
        return tvm.script.from_source(text + "".join(f"            {line}\n" for line in lines))


def filled(size: int, limit: int, dtype: str, width: int) -> Row:
    def want(a: np.ndarray, _: np.ndarray) -> np.ndarray:
        return np.where(np.arange(size) < limit, a, 3)

    body = f'if vi < {limit}:\n    B[vi] = A[vi]\nelse:\n    B[vi] = T.Cast("{dtype}", 3)'
    shapes = {"A": ((size,), dtype), "B": ((size,), dtype)}
    loaded = -(-limit * np.dtype(dtype).itemsize // 32)
    return Row(shapes, {"i": size}, body, want, lanes=width, loaded=loaded)


def chosen_beside_a_let(limit: int, width: int) -> Row:
    """Vectors of 4 were stored element by element: 512 sectors where 128 were moved before."""
    body = f"w = T.bind(A[vi, vj])\nB[vi, vj] = T.if_then_else(vj < {limit}, w, w + T.float32(1))"
    shapes = {"A": ((64, 16), F32), "B": ((64, 16), F32)}
    loops = {"i": 64, "j": 16}
    return Row(shapes, loops, body, lambda a, _: a + (np.arange(16) >= limit), lanes=width)


TURNED = {"A": ((128, 96), F32), "B": ((96, 128), F32)}
TURNED_LOOPS = {"i": 96, "j": 128}
ROWS = {
    # A condition that cuts a vector would have it go element by element.
    "filled, whole vectors": filled(1000, 700, F32, 16),
    "filled, cut vectors": filled(1000, 701, F32, 4),
    "filled, halves": filled(1024, 512, "float16", 16),
    "filled, bytes": filled(33, 7, "int8", 1),
    "a loaded condition of a row leaves its vectors whole": Row(
        {"A": ((64, 128), F32), "M": ((64,), "int32"), "B": ((64, 128), F32)},
        {"j": 128, "i": 64},
        "if M[vi] > 0:\n    B[vi, vj] = A[vi, vj]",
        lambda a, m, b: np.where(m[:, None] > 0, a, b),
        lanes=16,
    ),
    "a condition on each element leaves single elements": Row(
        {"A": ((999,), "float16"), "B": ((999,), "float16")},
        {"i": 999},
        "v = T.bind(A[vi])\nif v > T.float16(0):\n    B[vi] = v\nelse:\n    B[vi] = T.float16(0)",
        lambda a, _: np.maximum(a, 0),
        lanes=2,
    ),
    "the value of a let stands for its name": Row(
        {"A": ((33, 64), "float16"), "B": ((33, 64), "float16")},
        {"i": 33, "j": 64},
        "w = T.bind(32 - vi)\nv = T.bind(A[w, vj])\nB[vi, vj] = v * v",
        lambda a, _: a[::-1] * a[::-1],
        lanes=16,
        loaded=132,
    ),
    # TVM 0.27 makes no vector of it: the program could not be lowered.
    "a named truth value has no vector": Row(
        {"A": ((512,), F32), "B": ((512,), F32)},
        {"i": 512},
        "c = T.bind(A[vi] > T.float32(0))\nB[vi] = T.Select(c, A[vi], T.float32(0))",
        lambda a, _: np.maximum(a, 0),
        lanes=4,
    ),
    "a transpose with a let is staged": Row(
        TURNED,
        TURNED_LOOPS,
        "v = T.bind(A[vj, vi])\nB[vi, vj] = v + v",
        lambda a, _: 2 * a.T,
        "staged",
        16,
        1536,
    ),
    "a transpose with an if is staged": Row(
        TURNED,
        TURNED_LOOPS,
        "if vi < 61:\n    B[vi, vj] = A[vj, vi] + A[vj, vi]\nelse:\n    B[vi, vj] = T.float32(0)",
        lambda a, _: np.where(np.arange(96)[:, None] < 61, 2 * a.T, 0),
        "staged",
        16,
        1536,
    ),
    "a tile is not read for the few elements that a condition takes": Row(
        TURNED,
        TURNED_LOOPS,
        "if vi < 1:\n    B[vi, vj] = A[vj, vi]\nelse:\n    B[vi, vj] = T.float32(0)",
        lambda a, _: np.where(np.arange(96)[:, None] < 1, a.T, 0),
        loaded=128,
    ),
    "a result that is stored in part has no registers": Row(
        TURNED,
        TURNED_LOOPS,
        "if vi < 40:\n    B[vi, vj] = A[vj, vi]",
        lambda a, b: np.where(np.arange(96)[:, None] < 40, a.T, b),
        said="Block B stores B only where a condition holds",
    ),
    "a load that another decides on has no tile": Row(
        {"A": ((128, 96), F32), "M": ((96,), "int32"), "B": ((96, 128), F32)},
        TURNED_LOOPS,
        "if M[vi] > 0:\n    B[vi, vj] = A[vj, vi]\nelse:\n    B[vi, vj] = T.float32(0)",
        lambda a, m, _: np.where(m[:, None] > 0, a.T, 0),
        said="reads A only where what it loads says so",
    ),
    "an update in place under a condition": Row(
        {"B": ((1000,), F32)},
        {"i": 1000},
        "if vi < 701:\n    B[vi] = B[vi] + T.float32(1)",
        lambda b: b + (np.arange(1000) < 701),
    ),
    "a choice beside a let, of whole vectors": chosen_beside_a_let(8, 16),
    "a choice beside a let, of halves": chosen_beside_a_let(6, 8),
    "a choice beside a let, of elements": chosen_beside_a_let(5, 4),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_blocks(row: Row) -> None:
    values = [few(*shape, dtype=dtype) for shape, dtype in row.shapes.values()]
    outcome, report = run(row.function(), *(value.copy() for value in values))
    np.testing.assert_array_equal(report.outputs["B"], row.want(*values))
    assert outcome.path == row.path
    assert row.said in outcome.report
    assert report.bank_conflicts == 0
    if row.lanes is not None:
        assert widths(report, "A") == widths(report, "B") == {row.lanes}
    if row.loaded is not None:
        assert sectors(report, "A", "load") == row.loaded


@T.prim_func(s_tir=True)
def counted(A: T.Buffer((1000,), "int32"), C: T.Buffer((16,), "int32")) -> None:
    for i in range(1000):
        with T.sblock("B"):
            vi = T.axis.spatial(1000, i)
            v = T.bind(A[vi])
            if v >= 0:
                T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(C[v]), 1))


def test_an_atomic_under_a_condition() -> None:
    a = few(1000, dtype="int32")
    _, report = run(counted, a, np.zeros(16, "int32"))
    np.testing.assert_array_equal(report.outputs["C"], np.bincount(a[a >= 0], minlength=16))


@T.prim_func(s_tir=True)
def masked_sum(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64,), "float32")) -> None:
    for i, k in T.grid(64, 64):
        with T.sblock("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = T.float32(0)
            if vk < 40:
                B[vi] = B[vi] + A[vi, vk]


def test_a_reduction_under_an_if_is_refused() -> None:
    sch = s_tir.Schedule(masked_sum)
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"Block B is opaque.*reductions of stores and let"):
        sch.auto_coalesce("B")
    tvm.ir.assert_structural_equal(sch.mod, before)


def sum_of_squares(rows: int, columns: int, axis: int) -> Any:
    results, depth, at = (rows, columns, "vi, vk") if axis else (columns, rows, "vk, vi")
    body = f"v = T.bind(A[{at}]); B[vi] += v * v"
    return nests(f"A {rows}x{columns}, B {results}", f"B: i {results}, k {depth}: {body}")


@pytest.mark.parametrize(
    ("axis", "said"), [(1, "TVM knows no reducer"), (0, "a thread for each result")]
)
def test_a_reduction_with_a_let_is_done_by_a_thread_for_each_result(axis: int, said: str) -> None:
    """TVM takes no such body for a reducer's, and the program could not be lowered."""
    a = few(33, 256)
    outcome, report = run(sum_of_squares(33, 256, axis), a, None)
    np.testing.assert_array_equal(report.outputs["B"], (a * a).sum(axis))
    assert outcome.path == "reduction"
    assert said in outcome.report


@T.prim_func(s_tir=True)
def cut_somewhere(A: T.Buffer((512,), "float32"), B: T.Buffer((512,), "float32"), n: T.int32):
    for i in range(512):
        with T.sblock("B"):
            vi = T.axis.spatial(512, i)
            if vi < n:
                B[vi] = A[vi]
            else:
                B[vi] = T.float32(0)


def test_a_bound_that_is_not_known_may_cut_any_vector() -> None:
    a = few(512)
    _, report = run(cut_somewhere, a, None, 333)
    np.testing.assert_array_equal(report.outputs["B"], np.where(np.arange(512) < 333, a, 0))
    assert widths(report, "A") == widths(report, "B") == {4}


def test_a_condition_of_a_large_buffer_leaves_vectors_whole() -> None:
    """Too many iterations to look at them one by one."""
    sch = s_tir.Schedule(filled(1 << 24, 1 << 23, "float32", 4).function())
    assert "vector i 4" in sch.auto_coalesce("B").report


def best_of(shape: tuple[int, int], axis: int, dtype: str, *, known: bool) -> Any:
    """Argmax with a tensor of numbers; TVM knows the reducer only in one of its spellings."""

    def combine(x: Any, y: Any) -> Any:
        keep = x[1] >= y[1] if known else tirx.Not(x[1] < y[1])
        return tirx.Select(keep, x[0], y[0]), tirx.Select(keep, x[1], y[1])

    argmax = te.comm_reducer(
        combine, lambda i, v: (tirx.const(-1, i), tirx.min_value(v)), name="argmax"
    )
    numbered = te.placeholder(shape, "int32", "I")
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")

    def body(i: Any) -> Any:
        at = (k, i) if axis == 0 else (i, k)
        return argmax((numbered[at], a[at]), axis=k)

    return te.create_prim_func([numbered, a, *te.compute((shape[1 - axis],), body, "B")])


@pytest.mark.parametrize(
    ("shape", "axis", "dtype", "known", "said"),
    [
        ((16, 1024), 1, "float32", True, "along the rows, 1 rows of 256 lanes, vectors of 4"),
        ((33, 100), 1, "float16", True, "along the rows"),
        ((5, 7), 1, "float32", True, "along the rows"),
        ((100, 64), 0, "float32", True, "a thread for each result"),
        ((33, 7), 0, "float16", True, "across the rows|a thread for each result"),
        ((40, 65), 1, "float32", False, "a thread for each result"),
    ],
)
def test_two_results_of_one_reduction(
    shape: tuple[int, int], axis: int, dtype: str, known: bool, said: str
) -> None:
    rng = np.random.default_rng(3)
    a = rng.random(shape).argsort(axis).astype(dtype)  # No ties along the axis.
    numbered = rng.integers(0, 1000, shape).astype("int32")
    outcome, report = run(best_of(shape, axis, dtype, known=known), numbered, a, None, None)
    at = np.expand_dims(a.argmax(axis), axis)
    np.testing.assert_array_equal(
        report.outputs["B.v0"], np.take_along_axis(numbered, at, axis).squeeze(axis)
    )
    np.testing.assert_array_equal(report.outputs["B.v1"], a.max(axis))
    assert outcome.path == "reduction"
    assert re.search(said, outcome.report)


def test_both_operands_of_an_argmax_are_loaded_once_and_in_vectors() -> None:
    a, numbered = few(16, 1024), few(16, 1024, dtype="int32")
    _, report = run(best_of((16, 1024), 1, "float32", known=True), numbered, a, None, None)
    for name in ("A", "I"):
        assert widths(report, name) == {16}
        assert sectors(report, name, "load") == a.nbytes // 32


def fused(shape: tuple[int, int]) -> Any:
    """Transpose in one loop."""
    a = te.placeholder(shape, "float32", "A")
    b = te.compute(shape[::-1], lambda i, j: a[j, i], "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    sch.fuse(*sch.get_loops("B"))
    return sch.mod["main"]


@T.prim_func(s_tir=True)
def guarded_fused(A: T.Buffer((40, 24), "float32"), B: T.Buffer((24, 40), "float32")) -> None:
    for f in range(1024):
        with T.sblock("B"):
            T.where(f < 960)
            vi = T.axis.spatial(24, f // 40)
            vj = T.axis.spatial(40, f % 40)
            B[vi, vj] = A[vj, vi]


@pytest.mark.parametrize("func", [fused((40, 24)), guarded_fused])
def test_a_fused_loop_is_not_staged_and_says_why(func: Any) -> None:
    a = few(40, 24)
    outcome, report = run(func, a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert outcome.path == "direct"
    assert "stands behind several iterators" in outcome.report
    assert "TensorIR" not in outcome.report
