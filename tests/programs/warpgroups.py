"""Products by warpgroups: scheduled, simulated, and changed where a GPU would go wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.ir.device_program import DeviceProgram
from tvm_layout_ext.schedules._gemm_types import compute

SM90A = tlx.cuda_target("sm_90a")
TYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}


def product(
    shape: tuple[int, int, int], dtype: str = "float16", b_transposed: bool = True
) -> s_tir.Schedule:
    """A product without a schedule."""
    func = te.create_prim_func(compute(shape, dtype, b_transposed))
    return s_tir.Schedule(func.with_attr("global_symbol", "main"))


def schedule(
    sch: s_tir.Schedule,
    tile: tuple[int, int] = (128, 128),
    stages: int = 3,
    *,
    consumers: int = 2,
    group: int = 2,
    persistent: bool = False,
    cluster: tuple[int, int] = (1, 1),
    slices: int = 1,
    mode: str = "cooperative",
    block: str = "product",
    swap: bool = False,
) -> s_tir.Schedule:
    """Schedule a product as a user would; with ``swap`` the tile is of the transpose."""
    dtype = str(sch.get(sch.get_sblock(block)).reads[0].source.dtype)
    depth = 128 // np.dtype(dtype).itemsize
    name = f"wgmma.m64n{tile[1]}k8.f32.tf32" if dtype == "float32" else "wgmma"
    with SM90A:
        tc = sch.use_tensor_core(block, name, multiples=(*tile, depth), swap=swap)
    m, warpgroup, piece = sch.split(tc.m, [None, consumers, tile[0] // 64 // consumers])
    sch.reorder(m, tc.n, warpgroup, tc.k, piece)
    sch.rasterize(m, tc.n, group)
    if persistent:
        sch.persistent(m)
    for loop, blocks in zip((m, tc.n), cluster, strict=True):
        sch.cluster(loop, blocks, multicast=True)
    sch.cluster(tc.k, slices)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, stages, async_copy="tma")
    sch.specialize_warps(warpgroup, mode)
    sch.reverse_compute_at(tc.result, tc.n)
    return sch


def operands(
    shape: tuple[int, int, int], dtype: str = "float16", b_transposed: bool = True
) -> tuple[Any, Any, Any]:
    """A, B, and their product in float64."""
    (m, n, k), kind = shape, TYPES[dtype]
    rng = np.random.default_rng(sum(shape))
    a, b = (
        rng.standard_normal(size, np.float32).astype(kind)
        for size in ((m, k), (n, k) if b_transposed else (k, n))
    )
    right = b.T if b_transposed else b
    return a, b, a.astype(np.float64) @ right.astype(np.float64)


def followed(
    shape: tuple[int, int, int], end: Callable[[Any, Any, Any], Any], batch: Sequence[int] = ()
) -> s_tir.Schedule:
    """Block ``out``: what ``end`` makes of an element of ``product``, of a bias and of a rest."""
    names = ("A", "B", "bias", "rest")
    A, B, bias, rest = map(te.placeholder, _sizes(shape, batch), ["float16"] * 4, names)
    r = te.reduce_axis((0, shape[2]), "r")

    def term(*at: Any) -> Any:
        *b, i, j = at
        return te.sum(A[(*b, i, r)].astype("float32") * B[(*b, j, r)].astype("float32"), axis=r)

    product = te.compute(rest.shape, term, name="product")
    out = te.compute(rest.shape, lambda *at: end(product[at], bias[at[-1]], rest[at]), name="out")
    return s_tir.Schedule(te.create_prim_func([A, B, bias, rest, out]))


def given(shape: tuple[int, int, int], batch: Sequence[int] = ()) -> tuple[list[Any], Any, Any]:
    """Arrays of it, the product with its bias, and the rest, in float64."""
    rng = np.random.default_rng(shape[1])
    arrays = [rng.standard_normal(size).astype(np.float16) for size in _sizes(shape, batch)]
    a, b, bias, rest = (one.astype(np.float64) for one in arrays)
    return arrays, a @ b.swapaxes(-1, -2) + bias, rest


def _sizes(shape: tuple[int, int, int], batch: Sequence[int]) -> list[tuple[int, ...]]:
    m, n, k = shape
    return [(*batch, m, k), (*batch, n, k), (n,), (*batch, m, n)]


def program(sch: s_tir.Schedule) -> DeviceProgram:
    """The device functions of a schedule."""
    return tlx.device_program(sch, target=SM90A)


def with_argument(call: Any, position: int, value: Any) -> Any:
    """A call with another argument at a position."""
    arguments = list(call.args)
    arguments[position] = value
    return tvm.ir.Call(call.op, arguments, ret_ty=call.ty)
