"""Products by warpgroups: scheduled, simulated, and changed where a GPU would go wrong."""

from __future__ import annotations

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


def program(sch: s_tir.Schedule) -> DeviceProgram:
    """The device functions of a schedule."""
    return tlx.device_program(sch, target=SM90A)


def with_argument(call: Any, position: int, value: Any) -> Any:
    """A call with another argument at a position."""
    arguments = list(call.args)
    arguments[position] = value
    return tvm.ir.Call(call.op, arguments, ret_ty=call.ty)
