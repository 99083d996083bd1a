"""Keys in place of a value and its index: what is packed, what is left, and what comes out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, tirx
from tvm.script import tirx as T

from benchmarks.thread_programs import Program
from tests.programs.emitted import cuda_text
from tvm_layout_ext import te
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.transform import PackArgmax

KINDS = [(is_max, is_first) for is_max in (True, False) for is_first in (True, False)]


def extreme(
    shape: tuple[int, ...],
    axis: int,
    dtype: str,
    is_max: bool = True,
    is_first: bool = True,
    as_topi: bool = False,
    index: str = "int32",
    casts: tuple[str, ...] = (),
) -> Any:
    """An extreme value along an axis, and the first or the last index that has it."""
    a = te.placeholder(shape, dtype, "A")
    k = te.reduce_axis((0, shape[axis]), "k")

    def chosen(left: Any, right: Any) -> tuple[Any, Any]:
        larger = left[1] > right[1] if is_max else left[1] < right[1]
        earlier = left[0] < right[0] if is_first else left[0] > right[0]
        ahead = tirx.any(larger, tirx.all(left[1] == right[1], earlier))
        return (
            tirx.Select(ahead, left[0], right[0]),
            tirx.Select(ahead if as_topi else larger, left[1], right[1]),
        )

    worst = tirx.min_value if is_max else tirx.max_value
    best = te.comm_reducer(chosen, lambda i, v: (tirx.const(-1, i), worst(v)))
    kept = [n for at, n in enumerate(shape) if at != axis]

    def value(*i: Any) -> Any:
        number = k.var if index == "int32" else k.var.astype(index)
        element = a[(*i[:axis], k, *i[axis:])]
        for cast in casts:
            element = element.astype(cast)
        return best((number, element), axis=k)

    return te.create_prim_func([a, *te.compute(kept, value, "B")])


def expected(value: Any, axis: int, is_max: bool, is_first: bool) -> tuple[Any, Any]:
    """Index and value, by NumPy; what equals the start has the start's index before all others."""
    best = value.max(axis) if is_max else value.min(axis)
    found = value == np.expand_dims(best, axis)
    last = value.shape[axis] - 1 - np.flip(found, axis).argmax(axis)
    index = found.argmax(axis) if is_first else last
    ends = np.iinfo(value.dtype)
    start = ends.min if is_max else ends.max
    return np.where((best == start) & is_first, -1, index).astype(np.int32), best


def few(shape: tuple[int, ...], dtype: str, axis: int) -> Any:
    """Values with many ties, both ends of the type among them, and rows of one end alone."""
    ends = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    value = rng.choice(np.array([ends.min, ends.max - 1, 3, ends.max // 2], dtype), shape)
    rows = np.moveaxis(value, axis, -1)
    rows[0] = ends.min
    rows[-1] = ends.max
    return value


def require(report: Any, wanted: Any) -> None:
    """Both results are equal to what is wanted."""
    for got, want in zip(report.outputs.values(), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def scheduled(func: Any, **request: Any) -> s_tir.Schedule:
    sch = s_tir.Schedule(func)
    sch.auto_coalesce("B", **request)
    return sch


def keys(text: str) -> int:
    return text.count("__byte_perm")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize(("is_max", "is_first"), KINDS)
@pytest.mark.parametrize(
    ("shape", "axis"), [((37, 3, 16), 0), ((5, 37, 24), 1), ((6, 77), 1), ((6, 64), 1)]
)
def test_ties_and_ends_of_the_type_come_out_exactly(
    shape: tuple[int, ...], axis: int, dtype: str, is_max: bool, is_first: bool
) -> None:
    sch = scheduled(extreme(shape, axis, dtype, is_max, is_first))
    assert keys(cuda_text(sch))
    value = few(shape, dtype, axis)
    report = simulate(sch, value, None, None)
    assert not report.hazards
    require(report, expected(value, axis, is_max, is_first))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("to", ["int16", "uint16"])
@pytest.mark.parametrize(("shape", "axis"), [((37, 3, 16), 0), ((6, 256), 1)])
def test_bytes_are_widened_with_their_sign(
    shape: tuple[int, ...], axis: int, dtype: str, to: str
) -> None:
    value = np.random.default_rng(3).integers(-9, 9, shape).astype(dtype)
    report = simulate(scheduled(extreme(shape, axis, dtype, casts=(to,))), value, None, None)
    require(report, expected(value.astype(to), axis, True, True))


@pytest.mark.parametrize("by", ["int8", "float16"])
def test_values_keep_what_casts_took_from_them(by: str) -> None:
    shape, axis = (37, 3, 16), 0
    value = np.random.default_rng(3).integers(-9999, 9999, shape).astype("int16")
    sch = scheduled(extreme(shape, axis, "int16", casts=(by, "int16")))
    assert keys(cuda_text(sch))
    report = simulate(sch, value, None, None)
    require(report, expected(value.astype(by).astype("int16"), axis, True, True))


def test_slabs_and_their_combination() -> None:
    shape = (2, 40000)
    value = few(shape, "int8", 1)
    value[1] = 3
    value[1, 31234] = value[1, 4] = 100
    report = simulate(scheduled(extreme(shape, 1, "int8")), value, None, None)
    require(report, expected(value, 1, True, True))


@pytest.mark.parametrize(
    "way", [{"lanes": 32}, {"lanes": 256}, {"cluster": 2, "num_threads": 64}, {"keep": "none"}]
)
def test_rows_of_a_chain(way: dict[str, Any]) -> None:
    shape = (9, 2065)
    sch = s_tir.Schedule(extreme(shape, 1, "int8"))
    sch.fuse_rows(["B"], **way)
    # What the blocks of a cluster exchange is stored by no statement.
    assert bool(keys(cuda_text(sch))) == ("cluster" not in way)
    value = few(shape, "int8", 1)
    report = simulate(sch, value, None, None, target=cuda_target("sm_90a"))
    assert not report.hazards
    require(report, expected(value, 1, True, True))


def test_the_value_may_come_first() -> None:
    def larger(left: Any, right: Any) -> tuple[Any, Any]:
        ahead = tirx.any(left[0] > right[0], tirx.all(left[0] == right[0], left[1] < right[1]))
        return tuple(tirx.Select(ahead, left[n], right[n]) for n in range(2))

    best = te.comm_reducer(larger, lambda v, i: (tirx.min_value(v), tirx.const(-1, i)))
    a = te.placeholder((37, 48), "int8", "A")
    k = te.reduce_axis((0, 37), "k")
    found = te.compute((48,), lambda i: best((a[k, i], k.var), axis=k), "B")
    sch = scheduled(te.create_prim_func([a, *found]))
    assert keys(cuda_text(sch))
    value = few((37, 48), "int8", 0)
    got = list(simulate(sch, value, None, None).outputs.values())[::-1]
    for one, want in zip(got, expected(value, 0, True, True), strict=True):
        np.testing.assert_array_equal(one, want)


@pytest.mark.parametrize(("shape", "axis"), [((37, 3, 16), 0), ((6, 1003), 1)])
def test_indices_of_64_bits(shape: tuple[int, ...], axis: int) -> None:
    sch = scheduled(extreme(shape, axis, "int8", index="int64"))
    assert keys(cuda_text(sch))
    value = few(shape, "int8", axis)
    report = simulate(sch, value, None, None)
    assert not report.hazards
    require(report, expected(value, axis, True, True))


def test_one_condition_for_index_and_value() -> None:
    sch = scheduled(extreme((37, 3, 16), 0, "int8", as_topi=True))
    assert keys(cuda_text(sch))
    value = few((37, 3, 16), "int8", 0)
    got = list(simulate(sch, value, None, None).outputs.values())
    for one, want in zip(got, expected(value, 0, True, True), strict=True):
        np.testing.assert_array_equal(one, want)


def test_an_element_is_no_comparison() -> None:
    text = cuda_text(scheduled(extreme((588, 32, 64), 0, "int8")))
    updates = [line for line in text.splitlines() if "__byte_perm" in line]
    assert updates
    assert all("max(" in line and "?" not in line for line in updates)
    # Bytes are taken out of whole words.
    assert all("uchar" not in line for line in updates)


@pytest.mark.parametrize("dtype", ["int32", "float16", "float32"])
def test_wider_and_floating_values_are_left(dtype: str) -> None:
    func = (
        extreme((37, 3, 16), 0, dtype)
        if dtype == "int32"
        else Program("argmax", (37, 3, 16), dtype, (0,)).function()
    )
    assert not keys(cuda_text(scheduled(func)))


def test_another_order_of_ties_is_left() -> None:
    def of_these(left: Any, right: Any) -> tuple[Any, Any]:
        ahead = left[1] >= right[1]
        return tirx.Select(ahead, left[0], right[0]), tirx.Select(ahead, left[1], right[1])

    best = te.comm_reducer(of_these, lambda i, v: (tirx.const(-1, i), tirx.min_value(v)))
    a = te.placeholder((37, 48), "int8", "A")
    k = te.reduce_axis((0, 37), "k")
    func = te.create_prim_func(
        [a, *te.compute((48,), lambda i: best((k.var, a[k, i]), axis=k), "B")]
    )
    assert not keys(cuda_text(scheduled(func)))


def test_indices_that_have_no_room_are_left() -> None:
    assert keys(cuda_text(scheduled(extreme((60000, 32), 0, "int16"))))
    assert not keys(cuda_text(scheduled(extreme((70000, 32), 0, "int16"))))


def packed(func: Any) -> str:
    return str(PackArgmax()(tvm.IRModule({"main": func}))["main"].script())


def element(others: str, after: str = "") -> Any:
    """An ``argmax`` by one thread, and other statements: at its end, and after each element."""
    name = f"argmax_{len(others)}_{len(after)}"
    text = f"""
@T.prim_func(s_tir=True)
def {name}(A: T.Buffer((8,), "int8"), B: T.Buffer((8,), "int32")) -> None:
    T.func_attr({{"layout_ext.annotated": 1}})
    with T.sblock("root"):
        at = T.sblock_alloc_buffer((1,), "int32", scope="local")
        best = T.sblock_alloc_buffer((1,), "int8", scope="local")
        at[0] = -1
        best[0] = T.int8(-128)
        for k in range(8):
            i: T.let[T.int32] = T.Select(
                best[0] > A[k] or (best[0] == A[k] and at[0] < k), at[0], k
            )
            v: T.let[T.int8] = T.Select(best[0] > A[k], best[0], A[k])
            at[0] = i
            best[0] = v
            {after}
        {others}
        B[0] = at[0]
"""
    return tvm.script.from_source(text, {"T": T})


def test_registers_of_keys_take_the_place_of_two() -> None:
    text = packed(element("B[1] = T.int32(best[0])"))
    assert text.count("sblock_alloc_buffer") == 1
    assert "Select" not in text
    assert "best" not in text


@pytest.mark.parametrize(
    "others",
    [
        "best[0] = T.int8(5)",
        "at[0] = B[1]",
        'T.evaluate(T.call_extern("void", "f", T.address_of(at[0])))',
        'T.evaluate(T.call_extern("void", "f", at.data))',
        'T.evaluate(T.call_extern("void", "f", best.access_ptr("w")))',
    ],
)
def test_what_else_changes_them_leaves_both_as_they_are(others: str) -> None:
    func = element(others)
    assert packed(func) == str(func.script())


def test_variables_that_are_read_afterwards_stay() -> None:
    func = element("", after="B[k] = i")
    assert packed(func) == str(func.script())
