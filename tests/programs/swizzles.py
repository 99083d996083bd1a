"""Kernels that stage a tile through shared memory in every way an access can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import s_tir, te
from tvm.script import tirx as T

import tvm_layout_ext  # noqa: F401 (makes the primitives methods)
from tests.programs.mapped import computed
from tests.programs.products import multiplied

WARP = 32
Modes = dict[str, Any]


def data(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Small whole numbers, exact in every type."""
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(dtype)


def operand(mode: Any, *, rows: int = 128, columns: int = 32, scope: str = "shared") -> Any:
    """A 16-bit operand stored by 16-byte vectors, read in patches of 16x16 by 16-byte vectors.

    Lane l of a warp reads 8 elements of row l % 16, beginning at column l // 16 * 8, the addresses
    that ``ldmatrix`` gets. Output: every patch as the lanes hold it.
    """
    chunks = columns // 8
    rounds = rows * chunks // WARP
    patches = columns // 16

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((rows, columns), "float16"), B: T.Buffer((rows, columns), "float16")):
        S = T.sblock_alloc_buffer((rows, columns), "float16", scope=scope)
        for tx in T.thread_binding(WARP, thread="threadIdx.x"):
            for r in range(rounds):
                for v in T.vectorized(8):
                    with T.sblock("S"):
                        vi = T.axis.spatial(rows, (r * WARP + tx) // chunks)
                        vj = T.axis.spatial(columns, (r * WARP + tx) % chunks * 8 + v)
                        S[vi, vj] = A[vi, vj]
            for i, k in T.grid(rows // 16, patches):
                for v in T.vectorized(8):
                    with T.sblock("B"):
                        vi = T.axis.spatial(rows, i * 16 + tx % 16)
                        vj = T.axis.spatial(columns, k * 16 + tx // 16 * 8 + v)
                        B[vi, vj] = S[vi, vj]

    sch = s_tir.Schedule(kernel)
    if mode is not None:
        sch.swizzle("S", 0, mode)
    return sch


def transpose(
    mode: Any,
    dtype: str = "float32",
    *,
    rows: int = 32,
    columns: int = 32,
    vector: int = 1,
    scope: str = "shared",
    num_stages: int = 1,
    tiles: int = 1,
) -> Any:
    """Tiles one after the other, written along rows by vectors and read along columns."""
    shape = (tiles * rows, columns)
    sch = computed(shape, lambda a, j, i: a[i, j], dtype, out=shape[::-1])
    block = sch.get_sblock("B")
    j, i = sch.get_loops(block)
    tile, i = sch.split(i, [tiles, rows])
    sch.reorder(tile, j, i)
    sch.bind(sch.add_unit_loop(tile), "blockIdx.x")
    _, tx = sch.split(sch.fuse(j, i), [None, WARP])
    sch.bind(tx, "threadIdx.x")
    cache = sch.cache_read(block, 0, scope)
    sch.compute_at(cache, tile)
    _, tx, v = sch.split(sch.fuse(*sch.get_loops(cache)[-2:]), [None, WARP, vector])
    sch.bind(tx, "threadIdx.x")
    sch.vectorize(v)
    if mode is not None:
        sch.swizzle(cache, 0, mode)
    if num_stages > 1:
        sch.double_buffer(cache, num_stages)
    return sch


def gemm(
    modes: Modes,
    *,
    k: int = 128,
    tile_k: int = 32,
    scope: str = "shared.dyn",
    transposed: bool = True,
    num_stages: int = 1,
    size: int = 128,
) -> Any:
    """A 16-bit matrix product by TVM's own ``ldmatrix`` and ``mma.sync``, tiles 64x64."""
    # This import parses every tensor intrinsic that TVM has, for 12 seconds.
    from tvm.s_tir.tensor_intrin.cuda import (
        get_mma_intrin_group,
        shared_16x16_to_ldmatrix_32x8_layout,
    )
    from tvm.testing.tir import mma_schedule

    def warp_tile(i: Any, j: Any) -> Any:
        return (i // 16, j // 16, *shared_16x16_to_ldmatrix_32x8_layout(i % 16, j % 16))

    names = get_mma_intrin_group(scope, "global", "float16", "float32", False, transposed)
    factors = [size // 128, 2, 2, 2, 1]
    sch = mma_schedule(
        te.create_prim_func(multiplied((size, size, k), b_transposed=transposed)),
        16,
        "float16",
        transposed,
        factors,
        factors,
        [k // tile_k, tile_k // 16, 1],
        *[warp_tile] * 3,
        names["load_a"],
        names["load_b"],
        names["compute"],
        names["init"],
        "mma_store_16x16_f32_global_",
        scope,
    )
    for name in "AB":
        block = sch.get_sblock(f"{name}_{scope}")
        sch.unannotate(block, "buffer_dim_align")
        if modes.get(name) is not None:
            sch.swizzle(block, 0, modes[name])
        if num_stages > 1:
            sch.double_buffer(block, num_stages)
    return sch


def by_address(instruction: Callable[[Any, Any], None], mode: Any) -> Any:
    """A 32x8 tile whose rows ``instruction(S, lane)`` touches; the lane's row is in its indices."""

    @T.prim_func(s_tir=True)
    def kernel(A: T.Buffer((32, 64), "float16"), B: T.Buffer((32, 64), "float16")):
        S = T.sblock_alloc_buffer((32, 64), "float16", scope="shared")
        for tx in T.thread_binding(WARP, thread="threadIdx.x"):
            for c in range(8):
                for v in T.vectorized(8):
                    with T.sblock("S"):
                        vi = T.axis.spatial(32, c * 4 + tx // 8)
                        vj = T.axis.spatial(64, tx % 8 * 8 + v)
                        S[vi, vj] = A[vi, vj]
            with T.sblock("use"):
                vt = T.axis.spatial(32, tx)
                T.reads(S[0:32, 0:64])
                T.writes(B[0:32, 0:64])
                instruction(S, vt)

    sch = s_tir.Schedule(kernel)
    sch.swizzle("S", 0, mode)
    return sch


__all__ = ["by_address", "data", "gemm", "operand", "transpose"]
