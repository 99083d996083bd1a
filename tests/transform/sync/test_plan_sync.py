"""``PlanSync``: where barriers stand, where none does, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tests.programs import kernels, simulated
from tests.programs.barriers import check_minimal, marked, outline
from tvm_layout_ext import ScheduleError, decisions
from tvm_layout_ext.build import device_program
from tvm_layout_ext.simulate import simulate

FLOATS = kernels.random((64, 64))
ZEROS = np.zeros_like(FLOATS)


def kernel(body: str, scope: str = "shared", blocks: int = 1) -> Any:
    """Blocks b of 64 threads t, with A and B of 64 x 64 and shared S of 256."""
    lines = [
        "@T.prim_func(s_tir=True)",
        "def main(A: T.Buffer((64, 64), 'float32'), B: T.Buffer((64, 64), 'float32')):",
        f"    for b in T.thread_binding({blocks}, thread='blockIdx.x'):",
        "        for t in T.thread_binding(64, thread='threadIdx.x'):",
        "            with T.sblock('all'):",
        f"                S = T.sblock_alloc_buffer((256,), 'float32', scope='{scope}')",
        *(f"                {line}" for line in body.strip("\n").splitlines()),
    ]
    return tvm.script.from_source("\n".join(lines))


TILE = """
for k in range(64):
    S[t] = A[k, t]
    B[k, t] = S[63 - t]
"""
OWN = """
for k in range(64):
    S[t] = A[k, t]
    B[k, t] = S[t]
"""
VERSIONS = """
S[t] = A[0, t]
for k in range(64):
    if k < 63:
        S[(k + 1) % {n} * 64 + t] = A[k + 1, t]
    B[k, t] = S[k % {n} * 64 + 63 - t]
"""
INNER = """
S[t] = A[0, t]
for k in range(64):
    B[k, t] = S[(t + k) % 64]
"""
SWIZZLED = """
for i in range(4):
    S[(t // 8 * 8 + (t % 8 ^ i)) + i * 64] = A[i, t]
for i in range(4):
    B[i, t] = S[(t // 8 * 8 + (t % 8 ^ i)) + i * 64]
"""
HALVES = """
if t < 32:
    S[t] = A[0, t]
else:
    S[t] = A[1, t]
B[0, t] = S[t]
"""
GUARDED = """
S[t] = A[0, t]
if t < 32:
    B[0, t] = S[t + 32]
"""
UNIFORM = """
for k in range(64):
    if k % 4 == 0:
        S[t] = A[k, t]
    B[k, t] = S[63 - t]
"""


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (TILE, "k{ | S= | =S }"),
        (OWN, "k{ S= =S }"),
        (VERSIONS.format(n=1), "S= k{ if{ | S= } | =S }"),
        (VERSIONS.format(n=2), "S= k{ | if{ S= } =S }"),
        (VERSIONS.format(n=3), "S= k{ if{ S= } | =S }"),
        (INNER, "S= | k{ =S }"),
        (SWIZZLED, "i{ S= } i{ =S }"),
        (HALVES, "if{ S= } else{ S= } =S"),
        (GUARDED, "S= | if{ =S }"),
        (UNIFORM, "k{ if{ | S= } | =S }"),
    ],
)
def test_where_barriers_stand(body: str, wanted: str) -> None:
    assert outline(kernel(body)) == wanted


@pytest.mark.parametrize("body", [TILE, OWN, INNER, SWIZZLED, HALVES, GUARDED, UNIFORM])
def test_no_barrier_can_go(body: str) -> None:
    check_minimal(kernel(body), FLOATS, ZEROS)


ARENA = """
with T.sblock('more'):
    R = T.sblock_alloc_buffer((256,), 'float16', scope='shared.dyn')
    for k in range(4):
        S[k * 64 + t] = A[k, t]
    for k in range(4):
        B[k, t] = S[255 - k * 64 - t]
    for k in range(4):
        R[k * 64 + t] = T.Cast('float16', A[k + 4, t])
    for k in range(4):
        B[k + 4, t] = T.Cast('float32', R[255 - k * 64 - t])
"""


def test_a_barrier_stands_before_memory_is_used_again() -> None:
    source = kernel(ARENA, scope="shared.dyn")
    # R lies where S was, and goes by its name.
    assert outline(source) == "k{ S= } | k{ =S } | k{ S= } | k{ =S }"
    assert check_minimal(source, FLOATS, ZEROS).shared_bytes == 256 * 4


def test_kernels_of_one_function_are_planned_apart() -> None:
    program = device_program(marked(simulated.two_kernels))
    assert len(program.kernels) == 2
    check_minimal(_two_kernels, FLOATS, ZEROS, ZEROS)
    counts = [k.script().count("tvm_storage_sync") for k in _kernels(_two_kernels)]
    assert counts == [1, 2]


def _kernels(source: Any) -> list[Any]:
    return list(device_program(marked(source)).kernels.values())


@T.prim_func(s_tir=True)
def _two_kernels(
    A: T.Buffer((64, 64), "float32"),
    B: T.Buffer((64, 64), "float32"),
    C: T.Buffer((64, 64), "float32"),
):
    for t in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("first"):
            S = T.sblock_alloc_buffer((64,), "float32", scope="shared")
            S[t] = A[0, t]
            B[0, t] = S[63 - t]
    for u in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("second"):
            R = T.sblock_alloc_buffer((64,), "float32", scope="shared")
            for k in range(64):
                R[u] = A[k, u]
                C[k, u] = R[63 - u]


COPY = """
T.evaluate(T.ptx["cp.async.ca.shared.global"](T.address_of(S[t]), T.address_of(A[0, t]), 4))
T.evaluate(T.ptx["cp.async.commit_group"]())
"""
WAIT = 'T.evaluate(T.ptx["cp.async.wait_group"]({n}))\n'
READ = "B[0, t] = S[63 - t]\n"


def test_the_barrier_comes_after_the_wait() -> None:
    source = kernel(COPY + WAIT.format(n=0) + READ)
    assert outline(source) == "copy commit wait | =S"
    check_minimal(source, FLOATS, ZEROS)


def test_no_barrier_in_place_of_a_wait() -> None:
    for text in (COPY + READ, COPY + WAIT.format(n=1) + READ):
        with pytest.raises(ScheduleError, match="S is used while an asynchronous copy into S"):
            outline(kernel(text))


DIVERGENT = """
if t < 32:
    S[t] = A[0, t]
    B[0, t] = S[31 - t]
"""
DIVERGENT_LOOP = """
for k in range(t):
    S[t] = A[k, t]
    B[k, t] = S[63 - t]
"""


def test_refuses_what_needs_a_barrier_in_divergent_code() -> None:
    with pytest.raises(ScheduleError, match=r"Buffer S is read .* inside 'if threadIdx.x < 32'"):
        outline(kernel(DIVERGENT))
    with pytest.raises(ScheduleError, match=r"inside 'loop k of threadIdx.x iterations'"):
        outline(kernel(DIVERGENT_LOOP))


SYNC = "T.tvm_storage_sync('shared')"
#: What is around a barrier that only some threads come to, and how it is named.
DIVERGENT_BARRIERS = [
    ("if t < 32:\n    {sync}", "if threadIdx.x < 32"),
    ("if t < 32:\n    S[t] = A[0, t]\nelse:\n    {sync}", "if threadIdx.x < 32"),
    ("for k in range(t):\n    {sync}", "loop k of threadIdx.x iterations"),
]


@pytest.mark.parametrize("sync", [SYNC, "T.cuda.cta_sync()"])
@pytest.mark.parametrize(("body", "named"), DIVERGENT_BARRIERS)
def test_refuses_a_barrier_that_only_some_threads_come_to(body: str, named: str, sync: str) -> None:
    with pytest.raises(ScheduleError, match=f"A barrier stands inside '{named}") as error:
        outline(kernel(body.format(sync=sync)))
    assert "put the barrier outside" in str(error.value)


#: Conditions that are the same for all threads, or that thread indices alone do not tell.
UNIFORM_BARRIERS = [
    "if S[0] < T.float32(0):\n    {sync}",
    "if t // 64 == 0:\n    {sync}",
    "for k in range(3 + t // 64):\n    {sync}",
    "for k in range(9):\n    if k % 2 == 0:\n        {sync}\n    else:\n        B[1, t] = A[k, t]",
]


@pytest.mark.parametrize("body", UNIFORM_BARRIERS)
def test_a_barrier_that_all_threads_come_to_stays(body: str) -> None:
    use = "\nS[t] = A[2, t]\nB[0, t] = S[t]\n"
    (planned,) = _kernels(kernel(body.format(sync="T.cuda.cta_sync()") + use))
    assert planned.script().count("cuda.cta_sync()") == 1


JUMP = """
for k in range(64):
    if k == t:
        T.evaluate(T.break_loop())
    B[k, t] = S[t]
S[t] = A[0, t]
B[0, t] = S[63 - t]
"""


def test_refuses_jumps_where_barriers_are_missing() -> None:
    with pytest.raises(ScheduleError, match=r"needs 1 barriers .* by break_loop"):
        outline(kernel(JUMP))


def test_barriers_that_are_there_count_and_needless_ones_go() -> None:
    sync = "T.tvm_storage_sync('shared')\n"
    assert outline(kernel("S[t] = A[0, t]\n" + sync + READ)) == "S= | =S"
    assert outline(kernel("S[t] = A[0, t]\n" + sync + sync + READ)) == "S= | =S"
    assert outline(kernel("S[t] = A[0, t]\n" + sync + "B[0, t] = S[t]\n")) == "S= =S"


def test_barriers_stay_where_global_memory_is_exchanged() -> None:
    sync = "T.tvm_storage_sync('shared')\n"
    text = "B[0, t] = A[0, t]\n" + sync + "S[t] = B[0, 63 - t]\nB[1, t] = S[t]\n"
    assert outline(kernel(text)) == "| S= =S"
    assert outline(kernel(text.replace(sync, "T.cuda.cta_sync()\n"))) == "| S= =S"


def test_unknown_indices_touch_all_of_a_buffer() -> None:
    text = "S[t] = A[0, t]\nB[0, t] = S[T.Cast('int32', A[1, t])]\n"
    assert outline(kernel(text)) == "S= | =S"


def test_a_warp_barrier_orders_a_warp() -> None:
    warp = "T.cuda.warp_sync()\n"
    text = "S[t] = A[0, t]\n" + warp + "B[0, t] = S[t ^ 1]\n"
    assert outline(kernel(text)) == "S= =S"
    assert outline(kernel(text.replace("t ^ 1", "t ^ 32"))) == "S= | =S"


def test_a_kernel_with_mbarriers_is_left_alone() -> None:
    text = 'S[t] = A[0, t]\nT.evaluate(T.ptx["mbarrier.init.shared.b64"](T.address_of(S[0]), 1))\n'
    with decisions.collect() as made:
        assert "|" not in outline(kernel(text + READ))
    assert any("mbarrier_init synchronises, too" in d.text for d in made)


def test_marked_and_unmarked_functions_in_one_module() -> None:
    one, two = kernel(TILE), kernel(VERSIONS.format(n=2))
    mod = tvm.IRModule(
        {
            "one": one.with_attr("global_symbol", "one"),
            "two": two.with_attr({"global_symbol": "two", "layout_ext.test": 1}),
        }
    )
    counts = {
        name: k.script().count("tvm_storage_sync")
        for name, k in device_program(mod).kernels.items()
    }
    assert counts == {"one_kernel": 2, "two_kernel": 1}


def test_shared_memory_of_a_symbolic_size_is_refused_by_name() -> None:
    @T.prim_func(s_tir=True)
    def main(a: T.handle, n: T.int32) -> None:
        A = T.match_buffer(a, (n, 64), "float32")
        for t in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("all"):
                S = T.sblock_alloc_buffer((n, 64), "float32", scope="shared")
                for i in range(n):
                    S[i, t] = A[i, t]
                for i in range(n):
                    A[i, t] = S[i, 63 - t]

    with pytest.raises(ScheduleError, match=r"Buffer S in shared memory has \(n, 64\) elements"):
        device_program(marked(main))


#: Rows up to 2 are written: i begins at 3, and no address depends on it.
OTHER_ROWS = """
S[255 - t] = A[0, t]
for i in range(3, 5):
    for j in range(8):
        if i + j < {end}:
            S[j * 64 + t] = A[i + j, t]
B[0, t] = S[255 - t]
"""
#: What is written and read in the first iteration alone, of few and of many.
FIRST_TIME = """
for i in range({n}):
    for j in range(4):
        if i * 4 + j < {end}:
            S[t + j] = A[i, t]
    if i * 4 < {end}:
        B[i, t] = S[63 - t]
"""
#: Blocks that write and blocks that read.
EITHER = """
if b < 2:
    S[t] = A[0, t]
if b {read} 2:
    B[b, t] = S[63 - t]
"""


@pytest.mark.parametrize(
    ("body", "blocks"),
    [
        (OTHER_ROWS.format(end=7), 1),
        (FIRST_TIME.format(n=2, end=5), 1),
        (FIRST_TIME.format(n=17, end=1), 1),
        (EITHER.format(read="<"), 4),
    ],
)
def test_accesses_under_conditions_are_kept_apart(body: str, blocks: int) -> None:
    report = simulate(
        device_program(marked(kernel(body, blocks=blocks))), FLOATS, ZEROS, progress=False
    )
    assert report.hazards == []


APART = """
for i in range(4):
    if i >= 2:
        S[i % 2 * 128 + t] = A[i, t]
    if i < 2 and t < 32:
        B[i, t] = S[i % 2 * 128 + t]
"""


def test_what_each_thread_keeps_to_itself_needs_no_barrier() -> None:
    assert "|" not in outline(kernel(APART))
