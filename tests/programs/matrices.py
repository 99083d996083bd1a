"""Kernels that do one matrix instruction, its registers taken from and given to global memory."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

#: Two warps, so that mixing them up shows.
THREADS = 64


def table_mma(name: str, sizes: tuple[int, int, int], total: str) -> Any:
    """``D = A @ B + C`` by a table op; ``sizes`` are the registers of A, B and C."""
    na, nb, nc = sizes

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((THREADS, na), "uint32"),
        B: T.Buffer((THREADS, nb), "uint32"),
        C: T.Buffer((THREADS, nc), total),
        D: T.Buffer((THREADS, nc), total),
    ):
        for j in T.thread_binding(THREADS, "threadIdx.x"):
            with T.sblock("mma"):
                v = T.axis.spatial(THREADS, j)
                T.reads(A[v, 0:na], B[v, 0:nb], C[v, 0:nc])
                T.writes(D[v, 0:nc])
                a = T.alloc_buffer((na,), "uint32", scope="local")
                b = T.alloc_buffer((nb,), "uint32", scope="local")
                c = T.alloc_buffer((nc,), total, scope="local")
                d = T.alloc_buffer((nc,), total, scope="local")
                for k in range(na):
                    a[k] = A[v, k]
                for k in range(nb):
                    b[k] = B[v, k]
                for k in range(nc):
                    c[k] = C[v, k]
                T.ptx[name](
                    *[d[i] for i in range(nc)],
                    *[a[i] for i in range(na)],
                    *[b[i] for i in range(nb)],
                    *[c[i] for i in range(nc)],
                )
                for k in range(nc):
                    D[v, k] = d[k]

    return main


def legacy_mma(shape: str, types: tuple[str, ...], names: tuple[str, ...], k: int) -> Any:
    """``C += A @ B`` by ``ptx_legacy.mma`` on local arrays of the elements' own types."""
    ta, tb, tc = types
    na, nb, nc = 16 * k // 32, 8 * k // 32, 4

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((THREADS, na), ta),
        B: T.Buffer((THREADS, nb), tb),
        C: T.Buffer((THREADS, nc), tc),
        D: T.Buffer((THREADS, nc), tc),
    ):
        for j in T.thread_binding(THREADS, "threadIdx.x"):
            with T.sblock("mma"):
                v = T.axis.spatial(THREADS, j)
                T.reads(A[v, 0:na], B[v, 0:nb], C[v, 0:nc])
                T.writes(D[v, 0:nc])
                a = T.alloc_buffer((2 * na,), ta, scope="local")
                b = T.alloc_buffer((2 * nb,), tb, scope="local")
                c = T.alloc_buffer((nc,), tc, scope="local")
                for i in range(na):
                    a[na + i] = A[v, i]
                for i in range(nb):
                    b[nb + i] = B[v, i]
                for i in range(nc):
                    c[i] = C[v, i]
                T.evaluate(
                    T.ptx_legacy.mma(
                        shape, "row", "col", *names, a.data, na, b.data, nb, c.data, 0, False
                    )
                )
                for i in range(nc):
                    D[v, i] = c[i]

    return main


def load_matrices(number: int, trans: str) -> Any:
    """Each warp's rows of 16 bytes, taken in the order that ``R`` says, to registers."""
    name = f"ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16"

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((THREADS, 8), "float16"),
        R: T.Buffer((THREADS,), "int32"),
        D: T.Buffer((THREADS, number), "uint32"),
    ):
        S = T.sblock_alloc_buffer((THREADS, 8), "float16", scope="shared")
        for j in T.thread_binding(THREADS, "threadIdx.x"):
            with T.sblock("load"):
                v = T.axis.spatial(THREADS, j)
                T.reads(A[0:THREADS, 0:8], R[v])
                T.writes(D[v, 0:number])
                d = T.alloc_buffer((number,), "uint32", scope="local")
                for k in T.vectorized(8):
                    S[v, k] = A[v, k]
                T.evaluate(T.cuda.cta_sync())
                T.ptx[name](*[d[i] for i in range(number)], T.address_of(S[R[v], 0]))
                for k in range(number):
                    D[v, k] = d[k]

    return main


def store_matrices(number: int, trans: str) -> Any:
    """Registers to each warp's rows of 16 bytes, in the order that ``R`` says."""
    name = f"stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16"

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((THREADS, number), "uint32"),
        R: T.Buffer((THREADS,), "int32"),
        D: T.Buffer((THREADS, 8), "float16"),
    ):
        S = T.sblock_alloc_buffer((THREADS, 8), "float16", scope="shared")
        for j in T.thread_binding(THREADS, "threadIdx.x"):
            with T.sblock("store"):
                v = T.axis.spatial(THREADS, j)
                T.reads(A[v, 0:number], R[v])
                T.writes(D[0:THREADS, 0:8])
                a = T.alloc_buffer((number,), "uint32", scope="local")
                for k in range(number):
                    a[k] = A[v, k]
                for k in T.vectorized(8):
                    S[v, k] = T.float16(0)
                T.evaluate(T.cuda.cta_sync())
                T.ptx[name](T.address_of(S[R[v], 0]), *[a[i] for i in range(number)])
                T.evaluate(T.cuda.cta_sync())
                for k in T.vectorized(8):
                    D[v, k] = S[v, k]

    return main


def strided_rows(stride: int, start: int = 0, moved: int = 0) -> Any:
    """``ldmatrix.x4`` of one warp from rows ``stride`` halves apart, ``moved`` bytes further on."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, stride), "float16"), D: T.Buffer((32, 4), "uint32")):
        S = T.sblock_alloc_buffer((32, stride), "float16", scope="shared")
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("load"):
                v = T.axis.spatial(32, j)
                T.reads(A[v, 0:stride])
                T.writes(D[v, 0:4])
                d = T.alloc_buffer((4,), "uint32", scope="local")
                for k in range(stride):
                    S[v, k] = A[v, k]
                T.evaluate(T.cuda.cta_sync())
                T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
                    d[0], d[1], d[2], d[3], T.ptx.addr(T.address_of(S[v, start]), moved)
                )
                for k in range(4):
                    D[v, k] = d[k]

    return main


def part_of_a_warp(threads: int) -> Any:
    """``ldmatrix`` by the first threads of a warp only."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 8), "float16"), D: T.Buffer((32,), "uint32")):
        S = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("load"):
                v = T.axis.spatial(32, j)
                T.reads(A[v, 0:8])
                T.writes(D[v])
                d = T.alloc_buffer((1,), "uint32", scope="local")
                for k in range(8):
                    S[v, k] = A[v, k]
                d[0] = T.uint32(0)
                T.evaluate(T.cuda.cta_sync())
                if v < threads:
                    T.ptx["ldmatrix.sync.aligned.m8n8.x1.shared.b16"](d[0], T.address_of(S[v, 0]))
                D[v] = d[0]

    return main


def unwritten_row(row: int) -> Any:
    """``ldmatrix`` of rows of which one was never written; what is read goes through ``mma``."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 8), "float16"), D: T.Buffer((32, 4), "float32")):
        S = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("load"):
                v = T.axis.spatial(32, j)
                T.reads(A[v, 0:8])
                T.writes(D[v, 0:4])
                a = T.alloc_buffer((4,), "uint32", scope="local")
                c = T.alloc_buffer((4,), "float32", scope="local")
                if v != row:
                    for k in range(8):
                        S[v, k] = A[v, k]
                T.evaluate(T.cuda.cta_sync())
                T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
                    a[0], a[1], a[2], a[3], T.address_of(S[v, 0])
                )
                T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](
                    *[c[i] for i in range(4)],
                    *[a[i] for i in range(4)],
                    T.uint32(0),
                    T.uint32(0),
                    *[T.float32(0) for _ in range(4)],
                )
                for k in range(4):
                    D[v, k] = c[k]

    return main


def viewed_local() -> Any:
    """A local array of halves, written and read through views of words."""

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 4), "float16"), D: T.Buffer((32, 2), "uint32")):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("view"):
                v = T.axis.spatial(32, j)
                T.reads(A[v, 0:4])
                T.writes(D[v, 0:2])
                h = T.alloc_buffer((4,), "float16", scope="local")
                w = T.decl_buffer((2,), "uint32", data=h.data, scope="local")
                for k in range(4):
                    h[k] = A[v, k]
                w[1] = w[1] + T.uint32(1)
                for k in range(2):
                    D[v, k] = w[k]

    return main


def copy_with(tail: Any, width: int = 16) -> Any:
    """``cp.async`` of ``width`` bytes with a last operand ``tail(thread)``."""
    name = f"cp.async.{'cg' if width == 16 else 'ca'}.shared.global"

    @T.prim_func(s_tir=True)
    def main(A: T.Buffer((32, 8), "float16"), D: T.Buffer((32, 8), "float16")):
        S = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("copy"):
                v = T.axis.spatial(32, j)
                T.reads(A[v, 0:8])
                T.writes(D[v, 0:8])
                for k in range(8):
                    S[v, k] = T.float16(7)
                T.ptx[name](T.address_of(S[v, 0]), T.address_of(A[v, 0]), width, tail(v))
                T.ptx["cp.async.wait_all"]()
                for k in range(8):
                    D[v, k] = S[v, k]

    return main


def copy_by_index(size: int) -> Any:
    """Rows that ``size`` indices name, 16 bytes of each; only ten threads read anything."""

    @T.prim_func(s_tir=True)
    def main(
        A: T.Buffer((32, 8), "float16"),
        I: T.Buffer((size,), "int32"),  # noqa: E741
        D: T.Buffer((32, 8), "float16"),
    ):
        S = T.sblock_alloc_buffer((32, 8), "float16", scope="shared")
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("copy"):
                v = T.axis.spatial(32, j)
                T.reads(A[0:32, 0:8], I[0:size])
                T.writes(D[v, 0:8])
                T.ptx["cp.async.cg.shared.global"](
                    T.address_of(S[v, 0]),
                    T.address_of(A[I[v], 0]),
                    16,
                    T.if_then_else(v < 10, T.uint32(16), T.uint32(0)),
                )
                T.ptx["cp.async.wait_all"]()
                for k in range(8):
                    D[v, k] = S[v, k]

    return main
