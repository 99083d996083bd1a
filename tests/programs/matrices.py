"""Kernels that do one matrix instruction, its registers taken from and given to global memory."""

from __future__ import annotations

from typing import Any

from tests.programs.simulated import by_threads


def _all(name: str, count: int) -> str:
    """All registers of an array, as operands."""
    return ", ".join(f"{name}[{i}]" for i in range(count))


def table_mma(name: str, sizes: tuple[int, int, int], total: str) -> Any:
    """``D = A @ B + C`` by a table op; ``sizes`` are the registers of A, B and C."""
    na, nb, nc = sizes
    return by_threads(
        f"""
        for k in range({na}): a[k] = A[v, k]
        for k in range({nb}): b[k] = B[v, k]
        for k in range({nc}): c[k] = C[v, k]
        T.ptx["{name}"]({_all("d", nc)}, {_all("a", na)}, {_all("b", nb)}, {_all("c", nc)})
        for k in range({nc}): D[v, k] = d[k]
        """,
        f"A uint32[64, {na}], B uint32[64, {nb}], C {total}[64, {nc}], D {total}[64, {nc}]",
        local=f"a uint32[{na}], b uint32[{nb}], c {total}[{nc}], d {total}[{nc}]",
    )


def legacy_mma(shape: str, types: tuple[str, ...], names: tuple[str, ...], k: int) -> Any:
    """``C += A @ B`` by ``ptx_legacy.mma`` on local arrays of the elements' own types."""
    ta, tb, tc = types
    na, nb = 16 * k // 32, 8 * k // 32
    kinds = ", ".join(f"'{one}'" for one in (shape, "row", "col", *names))
    return by_threads(
        f"""
        T.reads(A[v, 0:{na}], B[v, 0:{nb}], C[v, 0:4])
        T.writes(D[v, 0:4])
        for i in range({na}): a[{na} + i] = A[v, i]
        for i in range({nb}): b[{nb} + i] = B[v, i]
        for i in range(4): c[i] = C[v, i]
        T.evaluate(T.ptx_legacy.mma({kinds}, a.data, {na}, b.data, {nb}, c.data, 0, False))
        for i in range(4): D[v, i] = c[i]
        """,
        f"A {ta}[64, {na}], B {tb}[64, {nb}], C {tc}[64, 4], D {tc}[64, 4]",
        local=f"a {ta}[{2 * na}], b {tb}[{2 * nb}], c {tc}[4]",
    )


def load_matrices(number: int, trans: str) -> Any:
    """Each warp's rows of 16 bytes, taken in the order that ``R`` says, to registers."""
    return by_threads(
        f"""
        for k in T.vectorized(8): S[v, k] = A[v, k]
        T.evaluate(T.cuda.cta_sync())
        T.ptx["ldmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16"](
            {_all("d", number)}, T.address_of(S[R[v], 0])
        )
        for k in range({number}): D[v, k] = d[k]
        """,
        f"A float16[64, 8], R int32[64], D uint32[64, {number}]",
        local=f"d uint32[{number}]",
        shared="S float16[64, 8]",
    )


def store_matrices(number: int, trans: str) -> Any:
    """Registers to each warp's rows of 16 bytes, in the order that ``R`` says."""
    return by_threads(
        f"""
        for k in range({number}): a[k] = A[v, k]
        for k in T.vectorized(8): S[v, k] = T.float16(0)
        T.evaluate(T.cuda.cta_sync())
        T.ptx["stmatrix.sync.aligned.m8n8.x{number}{trans}.shared.b16"](
            T.address_of(S[R[v], 0]), {_all("a", number)}
        )
        T.evaluate(T.cuda.cta_sync())
        for k in T.vectorized(8): D[v, k] = S[v, k]
        """,
        f"A uint32[64, {number}], R int32[64], D float16[64, 8]",
        local=f"a uint32[{number}]",
        shared="S float16[64, 8]",
    )


def strided_rows(stride: int, start: int = 0, moved: int = 0) -> Any:
    """``ldmatrix.x4`` of one warp from rows ``stride`` halves apart, ``moved`` bytes further on."""
    return by_threads(
        f"""
        for k in range({stride}): S[v, k] = A[v, k]
        T.evaluate(T.cuda.cta_sync())
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"](
            {_all("d", 4)}, T.ptx.addr(T.address_of(S[v, {start}]), {moved})
        )
        for k in range(4): D[v, k] = d[k]
        """,
        f"A float16[32, {stride}], D uint32[32, 4]",
        threads=32,
        local="d uint32[4]",
        shared=f"S float16[32, {stride}]",
    )


def part_of_a_warp(threads: int) -> Any:
    """``ldmatrix`` by the first threads of a warp only."""
    return by_threads(
        f"""
        for k in range(8): S[v, k] = A[v, k]
        d[0] = T.uint32(0)
        T.evaluate(T.cuda.cta_sync())
        if v < {threads}:
            T.ptx["ldmatrix.sync.aligned.m8n8.x1.shared.b16"](d[0], T.address_of(S[v, 0]))
        D[v] = d[0]
        """,
        "A float16[32, 8], D uint32[32]",
        threads=32,
        local="d uint32[1]",
        shared="S float16[32, 8]",
    )


def unwritten_row(row: int) -> Any:
    """``ldmatrix`` of rows of which one was never written; what is read goes through ``mma``."""
    return by_threads(
        f"""
        if v != {row}:
            for k in range(8): S[v, k] = A[v, k]
        T.evaluate(T.cuda.cta_sync())
        T.ptx["ldmatrix.sync.aligned.m8n8.x4.shared.b16"]({_all("a", 4)}, T.address_of(S[v, 0]))
        T.ptx["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"](
            {_all("c", 4)}, {_all("a", 4)}, T.uint32(0), T.uint32(0), *[T.float32(0)] * 4
        )
        for k in range(4): D[v, k] = c[k]
        """,
        "A float16[32, 8], D float32[32, 4]",
        threads=32,
        local="a uint32[4], c float32[4]",
        shared="S float16[32, 8]",
    )


def viewed_local() -> Any:
    """A local array of halves, written and read through views of words."""
    return by_threads(
        """
        T.reads(A[v, 0:4])
        T.writes(D[v, 0:2])
        h = T.alloc_buffer((4,), "float16", scope="local")
        w = T.decl_buffer((2,), "uint32", data=h.data, scope="local")
        for k in range(4): h[k] = A[v, k]
        w[1] = w[1] + T.uint32(1)
        for k in range(2): D[v, k] = w[k]
        """,
        "A float16[32, 4], D uint32[32, 2]",
        threads=32,
    )


def copy_with(tail: str, width: int = 16) -> Any:
    """``cp.async`` of ``width`` bytes with a last operand, in the thread ``v``."""
    return by_threads(
        f"""
        for k in range(8): S[v, k] = T.float16(7)
        T.ptx["cp.async.{"cg" if width == 16 else "ca"}.shared.global"](
            T.address_of(S[v, 0]), T.address_of(A[v, 0]), {width}, {tail}
        )
        T.ptx["cp.async.wait_all"]()
        for k in range(8): D[v, k] = S[v, k]
        """,
        "A float16[32, 8], D float16[32, 8]",
        threads=32,
        shared="S float16[32, 8]",
    )


def copy_by_index(size: int) -> Any:
    """Rows that ``size`` indices name, 16 bytes of each; only ten threads read anything."""
    return by_threads(
        """
        T.ptx["cp.async.cg.shared.global"](
            T.address_of(S[v, 0]),
            T.address_of(A[I[v], 0]),
            16,
            T.if_then_else(v < 10, T.uint32(16), T.uint32(0)),
        )
        T.ptx["cp.async.wait_all"]()
        for k in range(8): D[v, k] = S[v, k]
        """,
        f"A float16[32, 8], I int32[{size}], D float16[32, 8]",
        threads=32,
        shared="S float16[32, 8]",
    )
