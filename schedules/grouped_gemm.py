"""Products of groups of rows by a weight each, as layers of experts: ``C = A[rows of g] @ B[g]^T``.

Rows of A are sorted by group; ``offsets`` says on the GPU where each group begins and ends, G + 1
numbers from 0 to M that never fall, so groups may be empty. B is stored G x N x K. Persistent
blocks walk the tiles of the groups by these offsets, on ``sm_90a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any

import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules import _gemm_hopper, _gemm_types
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance, draw

#: Terms of a step of ``wgmma``, and bytes of an element.
_DEPTH, _BYTES = 64, 2
KNOBS = (
    knob("tile", ("128x256", "128x192", "128x128", "128x64"), default="128x128"),
    knob("group", (1, 4, 8, 16), default=8),
)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed: each weight times its group's rows, zeros in the place of the others."""
    groups, M, N, K = shape
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((groups, N, K), dtype, name="B")
    offsets = te.placeholder((groups + 1,), "int32", name="offsets")
    k, s = te.reduce_axis((0, K), name="k"), te.reduce_axis((0, groups), name="s")

    def row(g: Any, i: Any, k: Any) -> Any:
        inside = te.all(offsets[g] <= i, i < offsets[g + 1])
        return te.if_then_else(inside, A[i, k], te.const(0, dtype))

    own = te.compute((groups, M, K), row, name="own")

    def term(g: Any, i: Any, j: Any) -> Any:
        return own[g, i, k].astype("float32") * B[g, j, k].astype("float32")

    product = te.compute(
        (groups, M, N), lambda g, i, j: te.sum(term(g, i, j), axis=k), name="product"
    )
    C = te.compute((M, N), lambda i, j: te.sum(product[s, i, j].astype(dtype), axis=s), name="C")
    return [A, B, offsets, C]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: warpgroups multiply the tiles of one group after the other."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    rows, columns = map(int, str(config["tile"]).split("x"))
    tc = sch.use_tensor_core("product", "wgmma", multiples=(rows, columns, _DEPTH))
    sch.compute_inline("own")
    stages = _gemm_hopper.stages((rows, columns), True)
    _gemm_hopper.keep_members(sch, tc, rows, int(config["group"]), stages)
    sch.reverse_compute_at("C", tc.n)
    return sch


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    if refusal := _gemm_hopper.check_wgmma(architecture):
        return refusal
    return _gemm_hopper.check_pitch("A and B", shape[3] * _BYTES)


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, Any]:
    """The tile of the fewest modelled cycles, if groups are of one size."""
    groups, m, n, k = shape

    def cycles(tile: str) -> float:
        height = int(tile.partition("x")[0])
        rows = groups * ceil(m / groups / height) * height
        return _gemm_hopper.cycles((rows, n, k), tile, True)

    return {"tile": min(map(str, KNOBS[0].values), key=cycles)}


def inputs(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Rows, weights, and groups of random sizes."""
    groups, m, n, k = shape
    inner = np.sort(rng.integers(0, m, groups - 1, endpoint=True))
    offsets = np.concatenate([[0], inner, [m]]).astype("int32")
    return [draw((m, k), dtype, rng), draw((groups, n, k), dtype, rng), offsets]


def reference(a: np.ndarray, b: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """What NumPy makes of it, in float64."""
    ends = zip(b, offsets, offsets[1:], strict=False)
    parts = [a[x:y].astype(np.float64) @ one.T.astype(np.float64) for one, x, y in ends]
    return np.concatenate(parts).astype(a.dtype)


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """That of a plain product."""
    return _gemm_types.tolerance(shape[1:], dtype)


OPERATOR = Operator(
    name="grouped_gemm",
    dims=("G", "M", "N", "K"),
    parallel=("M", "N"),
    dtypes=("float16", "bfloat16"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    inputs=inputs,
    flops=lambda shape: 2 * shape[1] * shape[2] * shape[3],
    tolerance=tolerance,
    fit=fit,
)
