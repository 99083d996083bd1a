"""What is counted of an access is what SASS of CUDA 13.0 has, and a range where nvcc decides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tvm_layout_ext import simulate
from tvm_layout_ext.simulate import Report
from tvm_layout_ext.simulate.model.values import numpy_type

#: Requests of one warp: the least and the most.
Range = tuple[int, int]


@T.prim_func(s_tir=True)
def ways(A: T.Buffer((96,), "float32"), B: T.Buffer((128,), "float32")):
    for t in T.thread_binding(32, "threadIdx.x"):
        B[t] = A[t] * A[t]
        T.tvm_storage_sync("shared")
        B[t + 32] = A[t]
        if t < 9:
            B[t + 64] = A[t] + A[t + 32]
        T.tvm_storage_sync("shared")
        if t < 9:
            B[t + 96] = A[t + 32] + A[t + 64]
        B[t + 64] = A[t + 64]


@T.prim_func(s_tir=True)
def indirect(
    A: T.Buffer((64,), "float32"), at: T.Buffer((32,), "int32"), B: T.Buffer((64,), "float32")
):
    for t in T.thread_binding(32, "threadIdx.x"):
        B[t] = A[at[t]]
        B[t + 32] = A[at[t]] + A[at[t] + 1]


@T.prim_func(s_tir=True)
def hoisted(
    A: T.Buffer((32,), "float32"), B: T.Buffer((500,), "float32"), C: T.Buffer((16000,), "float32")
):
    for t in T.thread_binding(32, "threadIdx.x"):
        for i in range(500):
            C[i * 32 + t] = A[t] * B[i]


@T.prim_func(s_tir=True)
def conditional(A: T.Buffer((32,), "float32"), C: T.Buffer((16000,), "float32")):
    for t in T.thread_binding(32, "threadIdx.x"):
        for i in range(500):
            if i + t < 400:
                C[i * 32 + t] = A[t]


@T.prim_func(s_tir=True)
def kept_in_memory(A: T.Buffer((16000,), "float32"), B: T.Buffer((32,), "float32")):
    for t in T.thread_binding(32, "threadIdx.x"):
        B[t] = T.float32(0)
        T.tvm_storage_sync("shared")
        for i in range(500):
            B[t] = B[t] + A[i * 32 + t]


def reads_twice(turns: int) -> Any:
    size = turns * 32

    @T.prim_func(s_tir=True)
    def made(A: T.Buffer((size,), "float32"), B: T.Buffer((size,), "float32")):
        for t in T.thread_binding(32, "threadIdx.x"):
            s = T.alloc_buffer((32,), "float32", scope="shared")
            s[t] = T.float32(0)
            for i in range(turns):
                s[t] = s[t] + A[i * 32 + t]
            T.tvm_storage_sync("shared")
            for j in range(turns):
                B[j * 32 + t] = A[j * 32 + t] * s[31 - t]

    return made


def neighbours(dtype: str, stride: int, wanted: tuple[int, ...], *, store: bool) -> Any:
    """A kernel that moves some elements of rows of shared memory, one by one."""
    size, count = 32 * stride + 32, len(wanted)
    whole = f"for i in range({stride + 1}):\n            "
    shared = [f"s[t * {stride} + {at}]" for at in wanted]
    out = [f"B[t + {32 * i}]" for i in range(count)]
    lines = [f"{to} = {value}" for to, value in zip(out, shared, strict=True)]
    before, after = f"{whole}s[i * 32 + t] = A[i * 32 + t]", "\n        ".join(lines)
    if store:
        # A's elements do not lie together, so that only the stores may be joined.
        kept = [f"{to} = A[t + {32 * i}]" for i, to in enumerate(shared)]
        before, after = "\n        ".join(kept), f"{whole}B[i * 32 + t] = s[i * 32 + t]"
    return tvm.script.from_source(f"""
@T.prim_func(s_tir=True)
def main(A: T.Buffer(({size},), "{dtype}"), B: T.Buffer(({max(size, 32 * count)},), "{dtype}")):
    for t in T.thread_binding(32, "threadIdx.x"):
        s = T.alloc_buffer(({size},), "{dtype}", scope="shared")
        {before}
        T.tvm_storage_sync("shared")
        {after}
""")


def requests(report: Report) -> dict[str, Range]:
    """The least and the most of each buffer and kind."""
    found: dict[str, Range] = {}
    for one in report.accesses:
        least, most = found.get(f"{one.buffer} {one.kind}", (0, 0))
        both = least + one.requests - one.open_requests, most + one.requests
        found[f"{one.buffer} {one.kind}"] = both
    return found


def zeros(*sizes: int) -> list[Any]:
    return [np.zeros(size, "float32") for size in sizes]


def test_a_value_that_every_way_here_has_loaded_is_not_loaded_again() -> None:
    # nvcc makes 4 loads and 5 stores: it loads A[t + 64] once, after the condition has ended.
    report = simulate(ways, *zeros(96, 128))
    assert requests(report) == {"A load": (4, 5), "B store": (4, 5)}
    assert report.open == [
        "Open: 4 to 5 load requests of A, 10 to 14 sectors, as nvcc unrolls and keeps values.",
        "Open: 4 to 5 store requests of B, 14 to 16 sectors, as nvcc unrolls and keeps values.",
    ]


def test_an_index_from_a_constant_table_is_the_same_each_time() -> None:
    a, b = zeros(64, 64)
    report = simulate(indirect, a, np.arange(32, dtype="int32"), b)
    assert requests(report) == {"at load": (1, 1), "A load": (2, 2), "B store": (2, 2)}
    assert not report.open


def test_what_stays_the_same_is_loaded_before_a_loop_unless_a_condition_is_around_it() -> None:
    found = requests(simulate(hoisted, *zeros(32, 500, 16000)))
    assert found == {"A load": (1, 1), "B load": (500, 500), "C store": (500, 500)}
    found = requests(simulate(conditional, *zeros(32, 16000)))
    assert found == {"A load": (1, 400), "C store": (400, 400)}


def test_a_sum_in_memory_may_be_kept_in_a_register() -> None:
    # nvcc stores the zeros and the sum, and loads nothing.
    found = requests(simulate(kept_in_memory, *zeros(16000, 32)))
    assert found == {"A load": (500, 500), "B load": (0, 500), "B store": (1, 501)}


@pytest.mark.parametrize(("turns", "least"), [(4, 4), (300, 300), (500, 1000)])
def test_a_second_loop_may_find_values_of_the_first_if_both_are_unrolled(
    turns: int, least: int
) -> None:
    found = requests(simulate(reads_twice(turns), *zeros(turns * 32, turns * 32)))
    assert found["A load"] == (least, 2 * turns)
    # Before the barrier the sum may stay in a register; after it one is loaded, before the loop.
    assert (found["s store"], found["s load"]) == ((1, turns + 1), (1, turns + 1))


@pytest.mark.parametrize(
    ("dtype", "stride", "wanted", "widths", "is_open"),
    [
        ("float32", 4, (0, 1, 2, 3), [16], False),
        ("float32", 4, (1, 2, 3), [16], False),
        ("float32", 4, (0, 1, 3), [16], False),
        ("float32", 4, (2, 3), [8], False),
        ("float32", 4, (1, 2), [4, 4], False),
        ("float32", 4, (0, 2), [4, 4], False),
        ("float32", 8, (1, 2, 3, 4, 5), [8, 16], False),
        ("float32", 16, (3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), [4, 8, 16, 16], False),
        ("float32", 2, (0, 1, 2, 3), [8, 8], False),
        ("float32", 1, (0, 1, 2, 3), [4, 4, 4, 4], False),
        ("int16", 8, (0, 1), [4], False),
        ("int16", 8, (0, 1, 2), [8], False),
        ("int16", 8, (0, 1, 2, 3, 4), [16], False),
        ("int16", 8, (2, 3, 4, 5), [4, 4], False),
        ("int16", 8, (0, 1, 3, 4), [2, 2, 4], True),
        ("float16", 8, (0, 1, 2, 3, 4), [2, 8], True),
        ("bfloat16", 8, (0, 1, 2), [2, 2, 2], True),
    ],
)
def test_neighbours_in_shared_memory_are_loaded_at_once(
    dtype: str, stride: int, wanted: tuple[int, ...], widths: list[int], is_open: bool
) -> None:
    kernel = neighbours(dtype, stride, wanted, store=False)
    a = np.zeros(32 * stride + 32).astype(numpy_type(tvm.tirx.const(0, dtype))[0])
    report = simulate(kernel, a)
    loads = [a for a in report.accesses if (a.buffer, a.kind) == ("s", "load")]
    assert sorted(a.vector_bytes for a in loads) == widths
    assert all(a.requests == 1 for a in loads)
    # Copies of narrow floats are joined as integers are, and operands are not.
    assert any(a.open_requests for a in loads) == is_open


@pytest.mark.parametrize(
    ("stride", "wanted", "widths"),
    [
        (4, (0, 1, 2, 3), [16]),
        (4, (0, 1, 2), [4, 8]),
        (4, (1, 2, 3), [4, 8]),
        (4, (1, 2), [4, 4]),
        (2, (0, 1), [8]),
        (3, (0, 1, 2), [4, 4, 4]),
    ],
)
def test_neighbours_are_stored_at_once_where_all_are_there(
    stride: int, wanted: tuple[int, ...], widths: list[int]
) -> None:
    report = simulate(neighbours("float32", stride, wanted, store=True), *zeros(32 * stride + 32))
    stores = [a for a in report.accesses if (a.buffer, a.kind) == ("s", "store")]
    assert sorted(a.vector_bytes for a in stores) == widths


def test_a_vector_of_the_program_stays_whole() -> None:
    @T.prim_func(s_tir=True)
    def copies(A: T.Buffer((256,), "float16"), B: T.Buffer((256,), "float16")):
        for t in T.thread_binding(32, "threadIdx.x"):
            s = T.alloc_buffer((256,), "float16", scope="shared")
            for i in T.vectorized(8):
                s[t * 8 + i] = A[t * 8 + i]
            T.tvm_storage_sync("shared")
            for i in T.vectorized(8):
                B[t * 8 + i] = s[t * 8 + i]

    report = simulate(copies, np.zeros(256, "float16"))
    assert [(a.vector_bytes, a.bank_conflicts) for a in report.accesses] == [(16, 0)] * 4
    assert not report.open
