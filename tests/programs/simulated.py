"""TVMScript kernels, each with one thing right or wrong in it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from textwrap import dedent, indent
from typing import Any

import tvm
from tvm.script import tirx as T

_TEXT = """
@T.prim_func(s_tir=True)
def main({parameters}):
{on_chip}
    for block in T.thread_binding({blocks}, "blockIdx.x"):
        for thread in T.thread_binding({threads}, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial({blocks} * {threads}, block * {threads} + thread)
{body}
"""


def by_threads(
    body: str,
    buffers: str = "A int32[64], B int32[64]",
    threads: int = 64,
    *,
    blocks: int = 1,
    local: str = "",
    shared: str = "",
) -> Any:
    """A kernel whose threads ``v`` run a body as block ``B``, each with registers of its own.

    Buffers are told as ``A float16[32, 8], B int32[32]``, those on the chip, too.
    """

    def declared(text: str) -> list[tuple[str, str]]:
        found = re.findall(r"(\w+) (\w+)\[([\d, ]+)\]", text)
        return [(name, f"({shape},), '{dtype}'") for name, dtype, shape in found]

    parameters = [f"{name}: T.Buffer({kind})" for name, kind in declared(buffers)]
    on_chip = [
        f"    {name} = T.sblock_alloc_buffer({kind}, scope='{scope}')"
        for scope, texts in (("local", local), ("shared", shared))
        for name, kind in declared(texts)
    ]
    text = _TEXT.format(
        parameters=", ".join(parameters),
        on_chip="\n".join(on_chip),
        blocks=blocks,
        threads=threads,
        body=indent(dedent(body).strip(), " " * 16),
    )
    return tvm.script.from_source(text)


@T.prim_func(s_tir=True)
def between_blocks(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                vb, vj = T.axis.remap("SS", [b, j])
                T.reads(A[vj], B[vj])
                T.writes(B[vb * 32 + vj])
                B[vb * 32 + vj] = A[vj] + B[vj]


@T.prim_func(s_tir=True)
def same_bits(A: T.Buffer((64,), "int32"), B: T.Buffer((32,), "int32")):
    for b in T.thread_binding(2, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                _, vj = T.axis.remap("SS", [b, j])
                T.reads(A[vj])
                T.writes(B[vj])
                B[vj] = A[vj] * 3


@T.prim_func(s_tir=True)
def unbound_copy(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    S = T.sblock_alloc_buffer((64,), "int32", scope="shared")
    for j in T.thread_binding(64, "threadIdx.x"):
        for k in T.serial(64):
            with T.sblock("S"):
                v = T.axis.spatial(64, k)
                S[v] = A[v]
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = S[63 - v]


@T.prim_func(s_tir=True)
def unwritten_read(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    S = T.sblock_alloc_buffer((64,), "float32", scope="shared")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("S"):
            v = T.axis.spatial(64, j)
            if v < 48:
                S[v] = A[v]
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = S[63 - v] * 2.0


@T.prim_func(s_tir=True)
def unwritten_unused(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    S = T.sblock_alloc_buffer((64,), "float32", scope="shared")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("S"):
            v = T.axis.spatial(64, j)
            if v < 48:
                S[v] = A[v]
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = T.if_then_else(v >= 16, S[63 - v] * 2.0, 0.0)


@T.prim_func(s_tir=True)
def warp_memory(A: T.Buffer((256,), "float32"), B: T.Buffer((256,), "float32")):
    W = T.sblock_alloc_buffer((32,), "float32", scope="warp")
    for b in T.thread_binding(8, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("W"):
                vb, vj = T.axis.remap("SS", [b, j])
                W[vj] = A[vb * 32 + vj]
            with T.sblock("B"):
                vb, vj = T.axis.remap("SS", [b, j])
                B[vb * 32 + vj] = W[(vj + 1) % 32]


@T.prim_func(s_tir=True)
def dynamic(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 32), "float32")
    B = T.match_buffer(b, (n, 32), "float32")
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, 31 - vj] * 2.0


@T.prim_func(s_tir=True)
def two_kernels(a: T.handle, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 32), "float16")
    B = T.match_buffer(b, (n, 32), "float16")
    W = T.sblock_alloc_buffer((n, 32), "float16")
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("W"):
                vi, vj = T.axis.remap("SS", [i, j])
                W[vi, vj] = A[vi, vj] * T.float16(2)
    for i in T.thread_binding(n, "blockIdx.x"):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = W[vi, 31 - vj]


@T.prim_func(s_tir=True)
def half_the_threads_copy(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    S = T.sblock_alloc_buffer((64,), "int32", scope="shared")
    for j in T.thread_binding(64, "threadIdx.x"):
        for k in T.serial(64):
            with T.sblock("S"):
                _, vk = T.axis.remap("SS", [j, k])
                T.where(j < 32)
                S[vk] = A[vk]
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = S[63 - v]


@T.prim_func(s_tir=True)
def serial(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.serial(64):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = A[v]


@T.prim_func(s_tir=True)
def strided(a: T.handle, B: T.Buffer((16, 64), "float32")):
    s = T.int32()
    A = T.match_buffer(a, (16, 64), "float32", strides=(s, 1))
    for i in T.thread_binding(16, "blockIdx.x"):
        for j in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0


@T.prim_func(s_tir=True)
def host_loop(A: T.Buffer((4, 32), "float32"), B: T.Buffer((4, 32), "float32")):
    for k in T.serial(4):
        for j in T.thread_binding(32, "threadIdx.x"):
            with T.sblock("B"):
                vk, vj = T.axis.remap("SS", [k, j])
                B[vk, vj] = A[vk, vj] + 1.0


@T.prim_func(s_tir=True)
def mixed_arena(A: T.Buffer((128,), "float16"), B: T.Buffer((128,), "float32")):
    H = T.sblock_alloc_buffer((128,), "float16", scope="shared.dyn")
    F = T.sblock_alloc_buffer((128,), "float32", scope="shared.dyn")
    D = T.sblock_alloc_buffer((128,), "float64", scope="shared.dyn")
    for j in T.thread_binding(128, "threadIdx.x"):
        with T.sblock("H"):
            v = T.axis.spatial(128, j)
            H[v] = A[v]
        with T.sblock("F"):
            v = T.axis.spatial(128, j)
            F[v] = T.Cast("float32", H[127 - v]) * 2.0
        with T.sblock("D"):
            v = T.axis.spatial(128, j)
            D[v] = T.Cast("float64", F[(v + 1) % 128])
        with T.sblock("B"):
            v = T.axis.spatial(128, j)
            B[v] = T.Cast("float32", D[127 - v])


@T.prim_func(s_tir=True)
def mixed_arena_in_order(A: T.Buffer((128,), "float16"), B: T.Buffer((128,), "float64")):
    H = T.sblock_alloc_buffer((128,), "float16", scope="shared.dyn")
    D = T.sblock_alloc_buffer((128,), "float64", scope="shared.dyn")
    L = T.sblock_alloc_buffer((1,), "float16", scope="local")
    for j in T.thread_binding(128, "threadIdx.x"):
        with T.sblock("H"):
            v = T.axis.spatial(128, j)
            H[v] = A[v]
        with T.sblock("L"):
            v = T.axis.spatial(128, j)
            T.reads(H[127 - v])
            T.writes(L[0])
            L[0] = H[127 - v]
            T.cuda.cta_sync()
        with T.sblock("D"):
            v = T.axis.spatial(128, j)
            D[v] = T.Cast("float64", L[0])
        with T.sblock("B"):
            v = T.axis.spatial(128, j)
            B[v] = D[T.bitwise_xor(v, 5)]


#: Parsed when one is asked for: all of them took each process that collects tests 3 seconds.
_BY_THREADS: dict[str, Callable[[], Any]] = {
    "poison_address": partial(
        by_threads,
        """
    if v > 3:
        L[0] = 63 - v
    B[v] = A[L[0]]
    """,
        local="L int32[1]",
    ),
    "poison_predicate": partial(
        by_threads,
        """
    if v > 3:
        L[0] = v
    B[v] = 0
    if L[0] > 10:
        B[v] = A[v]
    """,
        local="L int32[1]",
    ),
    "half_written": partial(by_threads, "B[v * 2] = A[v]", threads=32),
    "accumulate": partial(by_threads, "B[v] = B[v] + A[v]"),
    "outside": partial(by_threads, "B[v] = A[v + 1]"),
    "guarded": partial(by_threads, "B[v] = T.if_then_else(v < 63, A[v + 1], 0)"),
    "misaligned": partial(
        by_threads,
        "B[T.Ramp(v * 4 + 1, 1, 4)] = T.Broadcast(A[v], 4)",
        "A float32[64], B float32[256]",
        threads=32,
    ),
    "halves_as_words": partial(
        by_threads,
        'B[T.Ramp(v * 4, 1, 4)] = T.reinterpret("uint32x4", A[T.Ramp(v * 8, 1, 8)])',
        "A float16[256], B uint32[128]",
        threads=32,
    ),
    "words_as_bytes": partial(
        by_threads,
        'B[T.Ramp(v * 4, 1, 4)] = T.reinterpret("int8x4", A[v])',
        "A uint32[32], B int8[128]",
        threads=32,
    ),
    "bytes_as_words": partial(
        by_threads,
        'B[v] = T.reinterpret("uint32", A[T.Ramp(v * 4, 1, 4)])',
        "A int8[128], B uint32[32]",
        threads=32,
    ),
    "half_poison_as_words": partial(
        by_threads,
        """
    T.reads(A[0:128])
    T.writes(B[0:64])
    own = T.alloc_buffer((4,), "float16", scope="local")
    own[T.Ramp(0, 1, 2)] = A[T.Ramp(v * 4, 1, 2)]
    words = T.alloc_buffer((2,), "uint32", scope="local")
    words[T.Ramp(0, 1, 2)] = T.reinterpret("uint32x2", own[T.Ramp(0, 1, 4)])
    B[v * 2] = words[0]
    if v == 5:
        B[v * 2 + 1] = words[1]
    """,
        "A float16[128], B uint32[64]",
        threads=32,
    ),
    "divergent_barrier": partial(
        by_threads,
        """
    if v < 32:
        T.cuda.cta_sync()
    B[v] = A[v]
    """,
    ),
    "half_warp_barrier": partial(
        by_threads,
        """
    if v < 16:
        T.cuda.cta_sync()
    else:
        T.cuda.cta_sync()
    B[v] = A[v]
    """,
    ),
    "two_roles": partial(
        by_threads,
        """
    if v < 32:
        for k in T.serial(3):
            B[32 + v] = A[v] + k
            T.cuda.cta_sync()
            T.cuda.cta_sync()
    else:
        for _ in T.serial(3):
            T.cuda.cta_sync()
            B[v - 32] = B[v] * 10
            T.cuda.cta_sync()
    """,
    ),
    "separate_ifs": partial(
        by_threads,
        """
    if v < 32:
        B[v] = A[v] * 2
        T.cuda.cta_sync()
    if v >= 32:
        T.cuda.cta_sync()
        B[v] = B[v - 32] + 1
    """,
    ),
    "warp_exchange": partial(
        by_threads,
        """
    B[v] = A[v]
    T.cuda.warp_sync()
    B[v] = B[T.bitwise_xor(v, 1)] + 0 * A[v]
    """,
    ),
    "warp_sync_too_weak": partial(
        by_threads,
        """
    B[v] = A[v]
    T.cuda.warp_sync()
    B[64 + v] = B[63 - v]
    """,
        "A int32[64], B int32[128]",
    ),
    "warp_sync_enough": partial(
        by_threads,
        """
    B[v] = A[v]
    T.cuda.warp_sync()
    B[64 + v] = B[T.bitwise_xor(v, 31)]
    """,
        "A int32[64], B int32[128]",
    ),
    "collatz": partial(
        by_threads,
        """
    n[0] = A[v]
    n[1] = 0
    while n[0] > 1:
        n[0] = T.if_then_else(n[0] % 2 == 0, n[0] // 2, n[0] * 3 + 1)
        n[1] = n[1] + 1
    B[v] = n[1]
    """,
        local="n int32[2]",
    ),
    "endless": partial(
        by_threads,
        """
    n[0] = 1
    while n[0] > 0:
        n[0] = 1
    B[v] = A[v]
    """,
        local="n int32[1]",
    ),
    "triangle": partial(
        by_threads,
        """
    n[0] = 0
    for k in T.serial(v):
        n[0] = n[0] + A[k]
    B[v] = n[0]
    """,
        local="n int32[1]",
    ),
    "unknown_extern": partial(
        by_threads,
        'B[v] = T.call_pure_extern("float32", "my_device_function", A[v])',
        "A float32[64], B float32[64]",
    ),
    "atomic_and_store": partial(
        by_threads,
        """
    if v == 5:
        B[0] = A[v]
    T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(B[0]), 1))
    """,
        "A int32[64], B int32[1]",
    ),
    "leaving_loops": partial(
        by_threads,
        """
    n[0] = 0
    for k in T.serial(v):
        if A[k] == 3:
            T.evaluate(T.continue_loop())
        if A[k] == 4 and k > 8:
            T.evaluate(T.break_loop())
        n[0] = n[0] + k
    B[v] = n[0]
    """,
        local="n int32[1]",
    ),
    "through_ldg": partial(
        by_threads,
        'B[v] = T.cuda.ldg(T.address_of(A[v]), "float32")',
        "A float32[64], B float32[64]",
    ),
    "votes": partial(
        by_threads,
        """
    B[v] = T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), A[v] % 2)
    C[v] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), A[v], 3, 32)
    """,
        "A int32[64], B uint32[64], C int32[64]",
    ),
    "histogram": partial(
        by_threads,
        'T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(B[A[v] % 4]), 1))',
        "A int32[256], B int32[4]",
        blocks=4,
    ),
    "float_sum": partial(
        by_threads,
        "T.evaluate(T.cuda.atomic_add(T.address_of(B[0]), A[v]))",
        "A float32[256], B float32[1]",
        blocks=4,
    ),
    "lost_updates": partial(by_threads, "B[v % 4] = A[v]", "A int32[256], B int32[4]", blocks=4),
}


def __getattr__(name: str) -> Any:
    if name not in _BY_THREADS:
        raise AttributeError(name)
    globals()[name] = found = _BY_THREADS[name]()
    return found
