"""Bank conflicts by enumeration: against the simulated GPU, and by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te
from tvm.script import tirx as T

from tests.programs import kernels
from tests.programs.mapped import computed
from tests.programs.swizzles import operand, transpose
from tvm_layout_ext.analysis.accesses import read_shared_accesses
from tvm_layout_ext.analysis.bank_conflict import bank_conflicts
from tvm_layout_ext.analysis.bank_requests import read_requests
from tvm_layout_ext.build import device_program, to_module
from tvm_layout_ext.report.explain import draw_arguments
from tvm_layout_ext.simulate import simulate


def staged(dtype: str) -> s_tir.Schedule:
    sch = computed((128, 128), lambda a, j, i: a[i, j], dtype)
    sch.auto_coalesce("B")
    return sch


def summed(dtype: str) -> s_tir.Schedule:
    a = te.placeholder((64, 256), dtype, "A")
    k = te.reduce_axis((0, 64), "k")
    sch = s_tir.Schedule(
        te.create_prim_func([a, te.compute((256,), lambda j: te.sum(a[k, j], k), "B")])
    )
    sch.auto_coalesce("B")
    return sch


CORPUS: dict[str, Callable[[], Any]] = {
    **{f"operand-{m}": lambda m=m: operand(m) for m in ("none", "pad", "xor", 64)},
    **{
        f"transpose-{dtype}-{vector}-{m}": lambda d=dtype, v=vector, m=m: transpose(
            m, d, rows=64, columns=32, vector=v
        )
        for dtype, vector in (("int8", 4), ("float16", 8), ("float32", 1), ("float64", 2))
        for m in ("none", "auto", "pad")
    },
    **{f"staged-{d}": lambda d=d: staged(d) for d in ("int8", "float16", "float32", "float64")},
    **{f"sum-{d}": lambda d=d: summed(d) for d in ("float16", "float32")},
    **{f"plain-{p}": lambda p=p: kernels.transpose(64, pad=p) for p in (0, 1, 2, 4)},
    "matmul": lambda: kernels.matmul(),
}


@pytest.mark.matrix
@pytest.mark.parametrize("make", CORPUS.values(), ids=CORPUS)
def test_every_access_agrees_with_the_simulated_gpu(make: Callable[[], Any]) -> None:
    source = make()
    mod = to_module(source, None)
    report = simulate(mod, *draw_arguments(mod, {}))
    kernel_functions = device_program(mod).kernels.values()
    counted = [one for kernel in kernel_functions for one in bank_conflicts(kernel)]
    assert all(one.is_exact for one in counted)
    mine = Counter(
        (c.buffer, c.kind, c.vector_bytes, c.wavefronts / c.requests, c.least / c.requests)
        for c in counted
    )
    theirs = Counter(
        (
            x.buffer,
            x.kind,
            x.vector_bytes,
            x.wavefronts / x.requests,
            (x.wavefronts - x.bank_conflicts) / x.requests,
        )
        for x in report.accesses
        if x.scope.startswith("shared")
    )
    assert mine == theirs
    assert mine


def test_before_lowering_vectors_are_loops_and_count_the_same() -> None:
    before = to_module(operand("none"), None)["main"]
    found = {c.kind: (c.vector_bytes, c.wavefronts, c.requests) for c in bank_conflicts(before)}
    assert found == {"store": (16, 64, 16), "load": (16, 256, 16)}


@T.prim_func(s_tir=True)
def gather(A: T.Buffer((32,), "int32"), B: T.Buffer((32,), "int32")) -> None:
    S = T.sblock_alloc_buffer((32,), "int32", scope="shared")
    for i in T.thread_binding(32, thread="threadIdx.x"):
        with T.sblock("S"):
            vi = T.axis.spatial(32, i)
            S[vi] = A[vi]
        with T.sblock("B"):
            vi = T.axis.spatial(32, i)
            B[vi] = S[A[vi]]


def test_an_access_whose_index_is_loaded_is_left_out() -> None:
    assert [c.kind for c in bank_conflicts(gather)] == ["store"]


def test_many_requests_are_sampled_and_it_says_so() -> None:
    (store, _) = read_shared_accesses(to_module(operand("none"), None)["main"])
    sampled = read_requests(store, 4)
    assert sampled is not None
    assert (len(sampled.active), sampled.total, sampled.is_exact) == (4, 16, False)


def test_banks_of_the_worst_request() -> None:
    mod = to_module(kernels.transpose(64), None)
    (kernel,) = device_program(mod).kernels.values()
    (column,) = [c for c in bank_conflicts(kernel) if c.kind == "load"]
    assert len(set(column.banks)) == 1
    assert column.degree == 32
    assert np.diff(column.addresses).tolist() == [128] * 31
