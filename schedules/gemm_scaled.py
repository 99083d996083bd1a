"""Matrix product ``C = A @ B^T`` of 8-bit floats with scales of blocks, as DeepSeek-V3's layers.

128 neighbours in a row of A share a scale, and 128 x 128 of B; scales are ``float32``, stored M x K
/ 128 and N / 128 x K / 128. Each step of 128 along K is a product of its own, whose sums are scaled
and added up in ``float32``, which tensor cores alone do not hold: they cut fp8's sums off.
Two warpgroups add up in turns with their products, on ``sm_90a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules import _gemm_hopper
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

#: Neighbours that share a scale, and rows of B; as many terms as a step of ``wgmma`` has.
_BLOCK = 128
KNOBS = (
    knob("tile", ("256x128", "128x128", "128x64"), default="128x128"),
    knob("cluster", (1, 2), default=1),
    knob("group", (1, 4, 8, 16), default=8),
)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed: a product for each step of K, and the sum of all, scaled."""
    M, N, K = shape
    steps = K // _BLOCK
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((N, K), dtype, name="B")
    a_scales = te.placeholder((M, steps), "float32", name="a_scales")
    b_scales = te.placeholder((ceil(N / _BLOCK), steps), "float32", name="b_scales")
    k, s = te.reduce_axis((0, _BLOCK), name="k"), te.reduce_axis((0, steps), name="s")

    def term(s: Any, i: Any, j: Any) -> Any:
        return A[i, s * _BLOCK + k].astype("float32") * B[j, s * _BLOCK + k].astype("float32")

    product = te.compute(
        (steps, M, N), lambda s, i, j: te.sum(term(s, i, j), axis=k), name="product"
    )

    def scaled(i: Any, j: Any) -> Any:
        return product[s, i, j] * (a_scales[i, s] * b_scales[j // _BLOCK, s])

    sums = te.compute((M, N), lambda i, j: te.sum(scaled(i, j), axis=s), name="sums")
    C = te.compute((M, N), lambda i, j: sums[i, j].astype("bfloat16"), name="C")
    return [A, B, a_scales, b_scales, C]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: warpgroups multiply a step, and add its sums up in registers."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    rows, columns = map(int, str(config["tile"]).split("x"))
    tc = sch.use_tensor_core("product", "wgmma", multiples=(rows, columns, _BLOCK))
    stages = _gemm_hopper.stages((rows, columns), True)
    group, cluster = int(config["group"]), int(config["cluster"])
    (step,) = tc.batch
    _gemm_hopper.keep_members(sch, tc, rows, group, stages, tc.batch, step, cluster)
    sch.set_scope("sums", 0, "local")
    sch.reverse_compute_at("sums", step)
    sch.reverse_compute_at("C", tc.n)
    return sch


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    if refusal := _gemm_hopper.check_wgmma(architecture):
        return refusal
    if shape[2] % _BLOCK:
        return Refusal("blocks", f"K is {shape[2]}; scales are of blocks of {_BLOCK}.")
    return None


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, Any]:
    """The tile of the fewest modelled cycles.

    Two blocks that share B are within 1% of none (H200, ``benchmarks/results/h200_scaled.json``).
    """

    def cycles(tile: str) -> float:
        return _gemm_hopper.cycles(shape, tile, True, 1, 1)

    return {"tile": min(map(str, KNOBS[0].values), key=cycles)}


def reference(
    a: np.ndarray, b: np.ndarray, a_scales: np.ndarray, b_scales: np.ndarray
) -> np.ndarray:
    """What NumPy makes of it, in float64."""
    left = a.astype(np.float64) * np.repeat(a_scales, _BLOCK, axis=1)
    scales = np.repeat(np.repeat(b_scales, _BLOCK, axis=0)[: len(b)], _BLOCK, axis=1)
    return (left @ (b.astype(np.float64) * scales).T).astype(ml_dtypes.bfloat16)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """One rounding to ``bfloat16``, and products that are cut off within each step."""
    eps = float(ml_dtypes.finfo("bfloat16").eps)
    return Tolerance(eps, 2.0**-10 * shape[2] + 1e-3)


OPERATOR = Operator(
    name="gemm_scaled",
    dims=("M", "N", "K"),
    parallel=("M", "N"),
    dtypes=("float8_e4m3fn", "float8_e5m2"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    flops=lambda shape: 2 * shape[0] * shape[1] * shape[2],
    tolerance=tolerance,
    fit=fit,
)
