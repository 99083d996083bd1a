"""``sch.eviction_policy``: the store that it becomes, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text, nvcc_says
from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext import ScheduleError, SimulationError, TargetError
from tvm_layout_ext.ir.annotations import EVICTION_POLICY
from tvm_layout_ext.simulate import simulate

H200 = tlx.cuda_target("sm_90a")
CALL = "tvm_layout_ext_store_"


def copy(shape: tuple[int, ...], dtype: str, axes: tuple[int, ...] | None = None) -> Any:
    """A block B that copies A, its axes permuted."""
    a = te.placeholder(shape, dtype, "A")
    axes = axes or tuple(range(len(shape)))
    inverse = [axes.index(i) for i in range(len(shape))]
    b = te.compute([shape[i] for i in axes], lambda *at: a(*[at[i] for i in inverse]), "B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


def by_threads(dtype: str, vector: int) -> s_tir.Schedule:
    """A copy of 2 x 3 rows of 64 vectors, each by a thread."""
    sch = copy((2, 3, 64 * vector), dtype)
    rows, steps, column = sch.get_loops("B")
    thread, lane = sch.split(column, [64, vector])
    sch.bind(rows, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(steps)
    sch.vectorize(lane)
    return sch


def ran(sch: s_tir.Schedule, shape: tuple[int, ...], dtype: str) -> Any:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    value = np.random.default_rng(0).integers(-8, 8, shape).astype(kind)
    return value, simulate(sch, value, None)


def kernel_of(sch: s_tir.Schedule, target: Any = H200) -> str:
    (kernel,) = tlx.device_program(sch, target=target).kernels.values()
    return str(kernel.body)


def counts(report: Any) -> list[Any]:
    """All of a report's accesses, but for the lines of the program that they are in."""
    return [replace(a, site=replace(a.site, line=0)) for a in report.accesses]


@pytest.mark.matrix
@pytest.mark.parametrize("policy", ["evict_last", "evict_first"])
@pytest.mark.parametrize(
    ("dtype", "vector", "width"),
    [
        ("float32", 4, 16),
        ("float32", 2, 8),
        ("float32", 1, 4),
        ("float16", 8, 16),
        ("float16", 2, 4),
        ("bfloat16", 4, 8),
        ("int8", 16, 16),
        ("int8", 4, 4),
        ("float64", 2, 16),
        ("float16", 1, 2),
        ("int8", 2, 2),
    ],
)
def test_results_and_counts_are_those_of_plain_stores(
    dtype: str, vector: int, width: int, policy: str
) -> None:
    plain, kept = by_threads(dtype, vector), by_threads(dtype, vector)
    kept.eviction_policy("B", policy)
    shape = (2, 3, 64 * vector)
    value, report = ran(kept, shape, dtype)
    np.testing.assert_array_equal(report.outputs["B"], value)
    _, before = ran(plain, shape, dtype)
    assert counts(report) == counts(before)
    assert not report.hazards
    calls = kernel_of(kept).count(f'"{CALL}{policy}_{width}"')
    assert calls == (3 if width >= 4 else 0)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_an_intermediate_of_vectors_is_simulated(dtype: str) -> None:
    """TVM makes its elements vectors, so that a whole one is a single element."""
    a = te.placeholder((64, 32), dtype, "A")
    c = te.compute((32, 64), lambda i, j: a[j, i], name="C")
    e = te.compute((32, 64), lambda i, j: c[i, j] + c[i, j], name="E")
    sch = s_tir.Schedule(te.create_prim_func([a, e]))
    for block in ("C", "E"):
        sch.auto_coalesce(block)
    value = np.arange(2048).reshape(64, 32).astype(dtype)
    gives(sch, value, target=H200, E=value.T * 2)


def two_threads_an_element() -> s_tir.Schedule:
    """Threads 2 * i and 2 * i + 1 store different values to element i."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((64,), "float32"), b: T.Buffer((32,), "float32")) -> None:
        for i in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(64, i)
                T.reads(a[v])
                T.writes(b[v // 2])
                b[v // 2] = a[v]

    return s_tir.Schedule(main)


def test_races_and_bounds_are_seen_as_at_plain_stores() -> None:
    value = np.arange(64, dtype="float32")
    found = []
    for policy in ("", "evict_last"):
        sch = two_threads_an_element()
        sch.eviction_policy("B", policy)
        report = simulate(sch, value, None)
        found.append([(h.kind, h.buffer, h.threads, h.count) for h in report.hazards])
    assert found[0] == found[1] != []

    @T.prim_func(s_tir=True)
    def outside(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float32")) -> None:
        for i in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                T.sblock_attr({"layout_ext.eviction_policy": "evict_last"})
                v = T.axis.spatial(64, i)
                T.reads(a[v])
                T.writes(b[v + 1])
                b[v + 1] = a[v]

    with pytest.raises(SimulationError, match="makes a store at index 64 of b"):
        simulate(outside, value, None)


def test_ragged_rows_have_a_policy_in_whole_vectors_only() -> None:
    n = te.var("n")
    sch = computed((n,), lambda a, i: a[i], "float16")
    sch.auto_coalesce("B")
    sch.eviction_policy("B", "evict_last")
    value = np.arange(1003).astype("float16")
    gives(sch, value, None, B=value)
    kernel = kernel_of(sch)
    assert [n for n in (2, 4, 8, 16) if f'"{CALL}evict_last_{n}"' in kernel] == [16]
    assert kernel.count("B[") == 2


def test_the_last_policy_counts() -> None:
    sch = by_threads("float32", 4)
    sch.eviction_policy("B", "evict_first")
    sch.eviction_policy("B", "evict_last")
    assert str(sch.get(sch.get_sblock("B")).annotations[EVICTION_POLICY]) == "evict_last"


@pytest.mark.parametrize("policy", ["evict_normal", "last", None])
def test_unknown_policies_are_refused(policy: Any) -> None:
    sch = by_threads("float32", 4)
    with pytest.raises(ScheduleError, match="needs one of evict_first, evict_last, auto or an"):
        sch.eviction_policy("B", policy)
    sch.annotate(sch.get_sblock("B"), EVICTION_POLICY, "evict_normal")
    with pytest.raises(ScheduleError, match="Block B asks for eviction policy 'evict_normal'"):
        tlx.lower(sch, target=H200)


def test_blocks_that_store_nothing_to_global_memory_are_refused() -> None:
    sch = by_threads("float32", 4)
    held = sch.cache_read("B", 0, "local")
    with pytest.raises(ScheduleError, match="stores to a global buffer; A_local writes A_local"):
        sch.eviction_policy(held, "evict_last")
    sch = by_threads("float32", 4)
    sch.eviction_policy("B", "evict_last")
    out = sch.cache_write("B", 0, "local")
    sch.reverse_compute_at(out, sch.get_loops("B")[2])
    with pytest.raises(ScheduleError, match=r"Block B asks .* stores to no global buffer when"):
        tlx.lower(sch, target=H200)


def test_targets_without_policies_refuse_what_is_asked_for_and_do_without_auto() -> None:
    turing = tlx.cuda_target("sm_75")
    sch = by_threads("float32", 4)
    sch.eviction_policy("B", "evict_last")
    with pytest.raises(TargetError, match=r"asks for .* sm_75 has no .* need .* 8\.0"):
        tlx.lower(sch, target=turing)
    sch.eviction_policy("B", "auto")
    assert CALL not in kernel_of(sch, turing)
    assert kernel_of(sch).count(f'"{CALL}evict_last_16"') == 3
    sch = copy((256, 256), "float32", (1, 0))
    sch.auto_coalesce("B")
    assert CALL not in kernel_of(sch, turing)


@pytest.mark.parametrize(
    ("sch", "kept"),
    [
        (copy((256, 256), "float32", (1, 0)), 1),
        (copy((2, 16, 8, 16, 16), "float16", (0, 2, 1, 3, 4)), 1),
        (computed((64, 64), lambda a, i, j: a[i, j].astype("float32"), "float16"), 1),
        (computed((64, 64), lambda a, i, j: a[i, j].astype("float16")), 0),
        (copy((64, 64), "float32"), 0),
        (computed((64, 64), lambda a, i, j: a[i, j] + a[0, j]), 0),
        (copy((63, 63), "float32", (1, 0)), 0),
    ],
    ids=["transpose", "heads", "wider", "narrower", "copy", "row", "ragged"],
)  # fmt: skip
def test_auto_coalesce_keeps_full_stores_of_permutations_and_casts(
    sch: s_tir.Schedule, kept: int
) -> None:
    outcome = sch.auto_coalesce("B")
    assert ("stores evict_last in L2" in outcome.text) == bool(kept)
    assert (CALL in kernel_of(sch)) == bool(kept)


@pytest.mark.parametrize("axes", [(1, 0, 2), (0, 2, 1)])
@pytest.mark.parametrize("policy", ["", "evict_first"])
def test_what_the_user_asked_for_stands(policy: str, axes: tuple[int, ...]) -> None:
    sch = copy((64, 64, 64), "float32", axes)
    sch.eviction_policy("B", policy)
    assert "evict_last" not in sch.auto_coalesce("B").text
    kernel = kernel_of(sch)
    assert "evict_last" not in kernel
    assert (f'"{CALL}evict_first_16"' in kernel) == bool(policy)


@pytest.mark.parametrize("policy", ["", "evict_first", "evict_last"])
@pytest.mark.parametrize("coalesced", [True, False])
def test_a_stage_records_it_for_the_block_that_stores(policy: str, coalesced: bool) -> None:
    a = te.placeholder((256, 256), "float32", "A")
    b = te.compute((256, 256), lambda i, j: a[j, i], "B")
    s = tlx.create_schedule(b.op)
    if coalesced:
        s[b].auto_coalesce()
    else:
        s[b].bind(b.op.axis[0], tlx.te.thread_axis("blockIdx.x"))
        s[b].bind(b.op.axis[1], tlx.te.thread_axis("threadIdx.x"))
    s[b].eviction_policy(policy)
    with pytest.raises(ScheduleError, match="not 'first'"):
        s[b].eviction_policy("first")
    (kernel,) = tlx.device_program(s, [a, b], target=H200).kernels.values()
    width = 16 if coalesced else 4
    for one in ("evict_first", "evict_last"):
        assert (f'"{CALL}{one}_{width}"' in str(kernel.body)) == (one == policy)


@pytest.mark.nvcc
def test_the_policy_reaches_the_machine(tmp_path: Path) -> None:
    """One policy, made without an instruction of its own a store, and one full load for each."""
    sch = copy((4, 64, 16, 128), "float16", (0, 2, 1, 3))
    sch.auto_coalesce("B")
    nvcc_says(cuda_text(sch), tmp_path, "-ptx")
    code = (tmp_path / "kernel.out").read_text()
    loads, stores = code.count("ld.global.nc.v4"), code.count("st.global.L2::cache_hint.v4.b32")
    assert loads == stores == 1
    assert code.count("createpolicy.fractional.L2::evict_last.b64") == 1
