"""TVMScript kernels, each with one thing right or wrong in it."""

from __future__ import annotations

from tvm.script import tirx as T


@T.prim_func(s_tir=True)
def histogram(A: T.Buffer((256,), "int32"), B: T.Buffer((4,), "int32")):
    for b in T.thread_binding(4, "blockIdx.x"):
        for j in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(256, b * 64 + j)
                T.reads(A[v])
                T.writes(B[0:4])
                T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(B[A[v] % 4]), 1))


@T.prim_func(s_tir=True)
def float_sum(A: T.Buffer((256,), "float32"), B: T.Buffer((1,), "float32")):
    for b in T.thread_binding(4, "blockIdx.x"):
        for j in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(256, b * 64 + j)
                T.reads(A[v])
                T.writes(B[0])
                T.evaluate(T.cuda.atomic_add(T.address_of(B[0]), A[v]))


@T.prim_func(s_tir=True)
def lost_updates(A: T.Buffer((256,), "int32"), B: T.Buffer((4,), "int32")):
    for b in T.thread_binding(4, "blockIdx.x"):
        for j in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("B"):
                v = T.axis.spatial(256, b * 64 + j)
                T.reads(A[v])
                T.writes(B[0:4])
                B[v % 4] = A[v]


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
def poison_address(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    L = T.sblock_alloc_buffer((1,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            if v > 3:
                L[0] = 63 - v
            B[v] = A[L[0]]


@T.prim_func(s_tir=True)
def poison_predicate(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    L = T.sblock_alloc_buffer((1,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            if v > 3:
                L[0] = v
            B[v] = 0
            if L[0] > 10:
                B[v] = A[v]


@T.prim_func(s_tir=True)
def half_written(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            B[v * 2] = A[v]


@T.prim_func(s_tir=True)
def accumulate(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = B[v] + A[v]


@T.prim_func(s_tir=True)
def outside(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = A[v + 1]


@T.prim_func(s_tir=True)
def guarded(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = T.if_then_else(v < 63, A[v + 1], 0)


@T.prim_func(s_tir=True)
def misaligned(A: T.Buffer((64,), "float32"), B: T.Buffer((256,), "float32")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            B[T.Ramp(v * 4 + 1, 1, 4)] = T.Broadcast(A[v], 4)


@T.prim_func(s_tir=True)
def halves_as_words(A: T.Buffer((256,), "float16"), B: T.Buffer((128,), "uint32")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            B[T.Ramp(v * 4, 1, 4)] = T.reinterpret("uint32x4", A[T.Ramp(v * 8, 1, 8)])


@T.prim_func(s_tir=True)
def words_as_bytes(A: T.Buffer((32,), "uint32"), B: T.Buffer((128,), "int8")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            B[T.Ramp(v * 4, 1, 4)] = T.reinterpret("int8x4", A[v])


@T.prim_func(s_tir=True)
def bytes_as_words(A: T.Buffer((128,), "int8"), B: T.Buffer((32,), "uint32")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            B[v] = T.reinterpret("uint32", A[T.Ramp(v * 4, 1, 4)])


@T.prim_func(s_tir=True)
def half_poison_as_words(A: T.Buffer((128,), "float16"), B: T.Buffer((64,), "uint32")):
    for j in T.thread_binding(32, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(32, j)
            T.reads(A[0:128])
            T.writes(B[0:64])
            own = T.alloc_buffer((4,), "float16", scope="local")
            own[T.Ramp(0, 1, 2)] = A[T.Ramp(v * 4, 1, 2)]
            words = T.alloc_buffer((2,), "uint32", scope="local")
            words[T.Ramp(0, 1, 2)] = T.reinterpret("uint32x2", own[T.Ramp(0, 1, 4)])
            B[v * 2] = words[0]
            if v == 5:
                B[v * 2 + 1] = words[1]


@T.prim_func(s_tir=True)
def divergent_barrier(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            if v < 32:
                T.cuda.cta_sync()
            B[v] = A[v]


@T.prim_func(s_tir=True)
def half_warp_barrier(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            if v < 16:
                T.cuda.cta_sync()
            else:
                T.cuda.cta_sync()
            B[v] = A[v]


@T.prim_func(s_tir=True)
def two_roles(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64], B[0:64])
            T.writes(B[0:64])
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


@T.prim_func(s_tir=True)
def separate_ifs(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64], B[0:64])
            T.writes(B[0:64])
            if v < 32:
                B[v] = A[v] * 2
                T.cuda.cta_sync()
            if v >= 32:
                T.cuda.cta_sync()
                B[v] = B[v - 32] + 1


@T.prim_func(s_tir=True)
def warp_exchange(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64], B[0:64])
            T.writes(B[0:64])
            B[v] = A[v]
            T.cuda.warp_sync()
            B[v] = B[T.bitwise_xor(v, 1)] + 0 * A[v]


@T.prim_func(s_tir=True)
def warp_sync_too_weak(A: T.Buffer((64,), "int32"), B: T.Buffer((128,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64], B[0:128])
            T.writes(B[0:128])
            B[v] = A[v]
            T.cuda.warp_sync()
            B[64 + v] = B[63 - v]


@T.prim_func(s_tir=True)
def warp_sync_enough(A: T.Buffer((64,), "int32"), B: T.Buffer((128,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64], B[0:128])
            T.writes(B[0:128])
            B[v] = A[v]
            T.cuda.warp_sync()
            B[64 + v] = B[T.bitwise_xor(v, 31)]


@T.prim_func(s_tir=True)
def collatz(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    n = T.sblock_alloc_buffer((2,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            n[0] = A[v]
            n[1] = 0
            while n[0] > 1:
                n[0] = T.if_then_else(n[0] % 2 == 0, n[0] // 2, n[0] * 3 + 1)
                n[1] = n[1] + 1
            B[v] = n[1]


@T.prim_func(s_tir=True)
def endless(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    n = T.sblock_alloc_buffer((1,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            n[0] = 1
            while n[0] > 0:
                n[0] = 1
            B[v] = A[v]


@T.prim_func(s_tir=True)
def triangle(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    n = T.sblock_alloc_buffer((1,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64])
            T.writes(B[v])
            n[0] = 0
            for k in T.serial(v):
                n[0] = n[0] + A[k]
            B[v] = n[0]


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
def unknown_extern(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            B[v] = T.call_pure_extern("float32", "my_device_function", A[v])


@T.prim_func(s_tir=True)
def atomic_and_store(A: T.Buffer((64,), "int32"), B: T.Buffer((1,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[0])
            if v == 5:
                B[0] = A[v]
            T.evaluate(T.call_extern("int32", "atomicAdd", T.address_of(B[0]), 1))


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
def leaving_loops(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "int32")):
    n = T.sblock_alloc_buffer((1,), "int32", scope="local")
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[0:64])
            T.writes(B[v])
            n[0] = 0
            for k in T.serial(v):
                if A[k] == 3:
                    T.evaluate(T.continue_loop())
                if A[k] == 4 and k > 8:
                    T.evaluate(T.break_loop())
                n[0] = n[0] + k
            B[v] = n[0]


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
def through_ldg(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v])
            B[v] = T.cuda.ldg(T.address_of(A[v]), "float32")


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


@T.prim_func(s_tir=True)
def votes(A: T.Buffer((64,), "int32"), B: T.Buffer((64,), "uint32"), C: T.Buffer((64,), "int32")):
    for j in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, j)
            T.reads(A[v])
            T.writes(B[v], C[v])
            B[v] = T.cuda.ballot_sync(T.uint32(0xFFFFFFFF), A[v] % 2)
            C[v] = T.cuda.__shfl_xor_sync(T.uint32(0xFFFFFFFF), A[v], 3, 32)
