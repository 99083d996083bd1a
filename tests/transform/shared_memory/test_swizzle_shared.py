from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import s_tir
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs import kernels
from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tests.programs.running import gives
from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.ir.annotations import SWIZZLE
from tvm_layout_ext.simulate import simulate

#: A tile of 32 by 32 words, the row number XORed into the column.
DIAGONAL = "33,66,132,264,528;1,2,4,8,16"


def transpose(swizzle: Any, scope: str = "shared") -> s_tir.Schedule:
    """A 64x64 transpose by tiles of 32x32, one word a thread."""
    sch = kernels.transpose(64, rows=32, scope=scope)
    if swizzle is not None:
        sch.annotate(sch.get_sblock(f"A_{scope}"), SWIZZLE, swizzle)
    return sch


@pytest.mark.parametrize("scope", ["shared", "shared.dyn"])
def test_a_swizzled_transpose_is_right_and_free_of_conflicts(scope: str) -> None:
    a = np.random.default_rng(0).standard_normal((64, 64)).astype("float32")
    assert simulate(transpose(None, scope), a, None).bank_conflicts > 0
    report = gives(transpose(DIAGONAL, scope), a, None, B=a.T)
    assert report.bank_conflicts == 0
    assert not report.hazards


@pytest.mark.parametrize(("dtype", "word"), [("float16", "half2"), ("int8", "int")])
def test_words_are_loaded_whole_in_the_code(dtype: str, word: str) -> None:
    # TVM's code generator loads element by element what does not provably start at a multiple.
    sch = computed((256, 256), lambda a, j, i: a[i, j], dtype)
    sch.auto_coalesce("B")
    code = cuda_text(sch)
    assert f"({word}*)(A_shared_ptr + " in code
    assert "A_shared_ptr[v_" not in code


@pytest.mark.parametrize(
    ("swizzle", "message"),
    [
        ("rows", "or look like"),
        ("1,2,4,8,16", "has 2 dims, the swizzle 1"),
        ("32,64;1,2,4,8,16", "32 elements along dim 0, the swizzle 4"),
        ("32,64,128,256,512;1,2,4,8,8", "several elements at one offset"),
        ("32,64,128,256,1024;1,2,4,8,16", "several elements at one offset"),
    ],
)
def test_a_wrong_swizzle_is_refused_by_name(swizzle: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as error:
        tlx.lower(transpose(swizzle))
    assert "A_shared" in str(error.value)


def test_memory_without_banks_is_refused() -> None:
    sch = computed((32,), lambda a, i: a[i])
    sch.bind(sch.get_loops(sch.get_sblock("B"))[0], "threadIdx.x")
    sch.annotate(sch.get_sblock("B"), SWIZZLE, "1,2,4,8,16")
    with pytest.raises(LayoutError, match="only shared memory has banks"):
        tlx.lower(sch)


@T.prim_func(s_tir=True)
def of_symbolic_rows(a: T.handle, b: T.handle, n: T.int32) -> None:
    A = T.match_buffer(a, (32, n), "float32")
    B = T.match_buffer(b, (n, 32), "float32")
    S = T.sblock_alloc_buffer((32, T.min(n, 32)), "float32", scope="shared")
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        for r in range(32):
            with T.sblock("S"):
                vi, vj = T.axis.remap("SS", [r, tx])
                T.where(tx < n)
                S[vi, vj] = A[vi, vj]
        for r in range(T.min(n, 32)):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [r, tx])
                B[vi, vj] = S[vj, vi]


@pytest.mark.parametrize(("mode", "conflicts"), [("none", 7 * 31), ("auto", 0), ("pad", 0)])
def test_rows_of_symbolic_length_get_their_bound_also_where_they_stay_plain(
    mode: str, conflicts: int
) -> None:
    sch = s_tir.Schedule(of_symbolic_rows, debug_mask="none")
    sch.swizzle("S", 0, mode)
    a = np.arange(32 * 7, dtype="float32").reshape(32, 7)
    report = gives(sch, a, np.zeros((7, 32), "float32"), 7, B=a.T)
    assert report.bank_conflicts == conflicts


@T.prim_func(s_tir=True)
def by_a_loaded_index(
    A: T.Buffer((32, 32), "float32"), P: T.Buffer((32,), "int32"), B: T.Buffer((32, 32), "float32")
) -> None:
    S = T.sblock_alloc_buffer((32, 32), "float32", scope="shared")
    for tx in T.thread_binding(32, thread="threadIdx.x"):
        for r in range(32):
            with T.sblock("S"):
                vi, vj = T.axis.remap("SS", [r, tx])
                S[vi, vj] = A[vi, vj]
        for r in range(32):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [r, tx])
                B[vi, vj] = S[P[vj], vi]


def test_auto_refuses_addresses_that_only_the_run_knows_and_names_the_buffer_once() -> None:
    sch = s_tir.Schedule(by_a_loaded_index)
    sch.swizzle("S", 0, "auto")
    with pytest.raises(LayoutError, match="are not known before it runs") as error:
        tlx.lower(sch)
    assert str(error.value).count("wants swizzled") == 1


def test_a_given_swizzle_follows_a_loaded_index() -> None:
    sch = s_tir.Schedule(by_a_loaded_index)
    sch.swizzle("S", 0, (1, 1, 32))
    a = np.arange(1024, dtype="float32").reshape(32, 32)
    rows = np.random.default_rng(0).permutation(32).astype("int32")
    gives(sch, a, rows, None, B=a[rows].T)


@pytest.mark.parametrize(("dtype", "bits"), [("int4", 4), ("float4_e2m1fn", 4)])
def test_elements_that_share_a_byte_are_refused(dtype: str, bits: int) -> None:
    """They were counted as if each had a byte of its own."""
    sch = computed((32, 32), lambda a, j, i: a[i, j], dtype)
    block = sch.get_sblock("B")
    j, i = sch.get_loops(block)
    sch.bind(j, "blockIdx.x")
    sch.bind(i, "threadIdx.x")
    cache = sch.cache_read(block, 0, "shared")
    sch.compute_at(cache, j)
    sch.swizzle(cache, 0, "auto")
    with pytest.raises(LayoutError, match=f"elements of {dtype} have {bits} bits, less than 8"):
        tlx.lower(sch)
