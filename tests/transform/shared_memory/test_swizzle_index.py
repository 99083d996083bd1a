"""Index code of swizzled buffers: vectors stay whole at every length of rows, in views, too."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import s_tir
from tvm.script import tirx as T

from tests.programs.running import gives
from tests.programs.swizzles import data, transpose
from tests.sampling import pairwise

#: Types, and the elements of 16 bytes.
TYPES = [
    ("int8", 16),
    ("float8_e4m3fn", 16),
    ("float16", 8),
    ("bfloat16", 8),
    ("float32", 4),
    ("float64", 2),
]


def shared_stores(report: Any) -> set[int]:
    """Bytes of the accesses that fill shared memory."""
    found = (x for x in report.accesses if x.scope.startswith("shared"))
    return {x.vector_bytes for x in found if x.kind == "store"}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("dtype", "vector", "row_bytes", "scope", "mode"),
    pairwise(
        (dtype, vector, row_bytes, scope, mode)
        for dtype, vector in TYPES
        for row_bytes in (32, 64, 128, 256, 512, 1024, 2048)
        for scope in ("shared", "shared.dyn")
        for mode in ("auto", "xor")
    ),
)
def test_every_row_of_every_type_is_stored_by_vectors_without_conflicts(
    dtype: str, vector: int, row_bytes: int, scope: str, mode: str
) -> None:
    """Eight rows of which a warp reads one word each; Triton's formula is not made for 8 bytes."""
    rows, columns = 8, row_bytes // (16 // vector)
    # A warp stores 512 bytes at once.
    rows = max(rows, 512 // row_bytes)
    a = data((rows, columns), dtype)
    sch = transpose(mode, dtype, rows=rows, columns=columns, vector=vector, scope=scope)
    report = gives(sch, a, None, B=a.T)
    assert shared_stores(report) == {16}
    if rows == 8 and (mode, dtype) != ("xor", "float64"):
        assert report.bank_conflicts == 0


def through_a_view(mode: Any) -> s_tir.Schedule:
    """A 32x64 tile written as it is, and read through views of its lower half's rows."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((32, 64), "float16"), B: T.Buffer((32, 64), "float16")):
        S = T.sblock_alloc_buffer((32, 64), "float16", scope="shared")
        for tx in T.thread_binding(32, thread="threadIdx.x"):
            for c in range(8):
                for v in T.vectorized(8):
                    with T.sblock("S"):
                        vi = T.axis.spatial(32, c * 4 + tx // 8)
                        vj = T.axis.spatial(64, tx % 8 * 8 + v)
                        S[vi, vj] = A[vi, vj]
            for half in range(2):
                with T.sblock("view"):
                    vh = T.axis.spatial(2, half)
                    vt = T.axis.spatial(32, tx)
                    T.reads(S[vh * 16 : vh * 16 + 16, 0:64])
                    T.writes(B[vh * 16 : vh * 16 + 16, 0:64])
                    V = T.match_buffer(
                        S[vh * 16 : vh * 16 + 16, 0:64],
                        (16, 64),
                        "float16",
                        scope="shared",
                        strides=[64, 1],
                        offset_factor=1,
                    )
                    for k in range(4):
                        for v in T.vectorized(8):
                            B[vh * 16 + vt % 16, k * 16 + vt // 16 * 8 + v] = V[
                                vt % 16, k * 16 + vt // 16 * 8 + v
                            ]

    sch = s_tir.Schedule(kernel)
    sch.swizzle("S", 0, mode)
    return sch


@pytest.mark.parametrize("mode", ["auto", "xor", "pad", 64, 128, (8, 1, 8)])
def test_views_of_a_buffer_follow_it(mode: Any) -> None:
    a = data((32, 64), "float16")
    report = gives(through_a_view(mode), a, None, B=a)
    assert {x.vector_bytes for x in report.accesses if x.scope == "shared"} == {16}
    loads = [x for x in report.accesses if x.scope == "shared" and x.kind == "load"]
    assert sum(x.bank_conflicts for x in loads) == 0
