"""Gated matrix products: ``C = silu(A @ B[0]^T) * (A @ B[1]^T)``, as MLPs of language models have.

B is stored 2 x N x K, which is the weight of 2 N rows of a gate and an up projection in one. Both
products share a tile: their sums are in the registers of the same threads, which multiply them, so
that neither is ever stored. By warpgroups, on ``sm_90a``.

``A[i, k]`` is read as that of each product, which makes a batch of them; :func:`multiply` puts the
batch inside of a tile. It takes any number of products and whatever is computed from their sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
from tvm import s_tir

from tvm_layout_ext import te
from tvm_layout_ext.analysis.contraction import Contraction, read_contraction
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS, Architecture
from tvm_layout_ext.gpu.warpgroups import WARPGROUP_ROWS
from tvm_layout_ext.intrin.warpgroups import WarpgroupInstruction
from tvm_layout_ext.schedules import _gemm_hopper, _gemm_types
from tvm_layout_ext.transform.hopper.members import are_read
from tvm_layout_ext.tune.space.knobs import Config, Refusal, knob
from tvm_layout_ext.tune.space.operator import Operator, Tolerance, draw

#: Products, and bytes of an element.
_PRODUCTS, _BYTES = 2, 2
#: Blocks of few rows that share a multiprocessor at most.
_MOST_RESIDENT = 4
#: Rows and columns of a tile of results; of fewer than 64 rows columns go to the instruction's.
TILES = (
    *("128x128", "128x120", "128x112", "128x104", "128x96", "128x88", "128x80", "128x72"),
    *("128x64", "256x80", "256x72", "256x64", "64x128", "64x64"),
    *(f"{rows}x64" for rows in (8, 16, 24, 32, 48)),
)
KNOBS = (
    knob("tile", TILES, default="128x128"),
    knob("group", (1, 4, 8, 16), default=8),
)


def compute(shape: tuple[int, ...], dtype: str) -> list[Any]:
    """What is computed: a batch of products of the same A, and the gate's times the other."""
    M, N, K = shape
    A = te.placeholder((M, K), dtype, name="A")
    B = te.placeholder((_PRODUCTS, N, K), dtype, name="B")
    k = te.reduce_axis((0, K), name="k")
    own = te.compute((_PRODUCTS, M, K), lambda _, i, k: A[i, k], name="own")

    def term(h: Any, i: Any, j: Any) -> Any:
        return own[h, i, k].astype("float32") * B[h, j, k].astype("float32")

    product = te.compute(
        (_PRODUCTS, M, N), lambda h, i, j: te.sum(term(h, i, j), axis=k), name="product"
    )

    # An iterator that is 0: TVM places no block that reads parts of a batch by numbers alone.
    def gated(h: Any, i: Any, j: Any) -> Any:
        gate = product[h * _PRODUCTS, i, j]
        return (gate * te.sigmoid(gate) * product[h * _PRODUCTS + 1, i, j]).astype(dtype)

    return [A, B, te.compute((1, M, N), gated, name="C")]


def schedule(tensors: Sequence[Any], config: Config) -> s_tir.Schedule:
    """How: :func:`multiply`."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)).with_attr("global_symbol", "main"))
    multiply(sch, "product", "C", config)
    return sch


def multiply(sch: s_tir.Schedule, block: str, after: str, config: Config) -> None:
    """Schedule a batch of products that share a factor, and what reads their sums, in one kernel.

    What makes operands of the products, element by element, goes into their copies.
    """
    rows, columns = map(int, str(config["tile"]).split("x"))
    if swap := rows < WARPGROUP_ROWS:
        rows, columns = columns, rows
    what = read_contraction(sch.get(sch.get_sblock(block)))
    one = WarpgroupInstruction(what.operand, what.sums, columns)
    depth = one.shape[2]
    tc = sch.use_tensor_core(block, one.name, multiples=(rows, columns, depth), swap=swap)
    for copy in (tc.a, tc.b):
        while producers := sch.get_producers(copy):
            sch.compute_inline(producers[0])
    resident = 1
    if swap and rows == WARPGROUP_ROWS:
        tiles = int(sch.get(tc.m).extent) * int(sch.get(tc.n).extent)
        resident = min(_MOST_RESIDENT, ceil(tiles / MULTIPROCESSORS))
    stages = _gemm_hopper.stages(_plain(str(config["tile"])), tc.b_k_major, resident)
    group, stay = int(config["group"]), resident == 1
    _gemm_hopper.keep_members(sch, tc, rows, group, stages, tc.batch, stay=stay)
    sch.reverse_compute_at(after, tc.n)


def meeting(sch: s_tir.Schedule, products: Mapping[str, Contraction]) -> tuple[str, str] | None:
    """A batch of products all of whose members one block reads, and that block, or None."""
    if len(products) != 1:
        return None
    ((name, what),) = products.items()
    readers = sch.get_consumers(name)
    if len(what.batch) != 1 or len(readers) != 1:
        return None
    sums, after = sch.get(sch.get_sblock(name)).writes[0].source, sch.get(readers[0])
    return (name, after.name_hint) if are_read(after.body.value, sums) else None


def _plain(tile: str) -> tuple[int, int]:
    """The tile of one product that takes as many sums and copies."""
    rows, columns = map(int, tile.split("x"))
    return rows, columns * _PRODUCTS


def check(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal, or None."""
    if 1 in shape[:2]:
        return Refusal("one row", "Products of a single row or column are sums; two are legal.")
    if refusal := _gemm_hopper.check_wgmma(architecture):
        return refusal
    return _gemm_hopper.check_pitch("A and B", shape[2] * _BYTES)


def fit(
    shape: tuple[int, ...], dtype: str, config: Config, architecture: Architecture
) -> dict[str, Any]:
    """The tile of the fewest modelled cycles: those of a product of all columns."""
    m, n, k = shape

    def cycles(tile: str) -> float:
        rows, columns = _plain(tile)
        every = ceil(2 * n / columns) * columns
        return _gemm_hopper.cycles((m, every, k), f"{rows}x{columns}", True)

    # Each tile of few rows reads all columns: two of them at most.
    least = min(WARPGROUP_ROWS, m / 2)
    return {"tile": min((t for t in TILES if _plain(t)[0] >= least), key=cycles)}


def inputs(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> list[np.ndarray]:
    """Sums of a size with which the gate neither opens nor closes."""
    m, n, k = shape
    b = draw((_PRODUCTS, n, k), dtype, rng).astype(np.float32) * k**-0.5
    return [draw((m, k), dtype, rng), b.astype(dtype)]


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What NumPy makes of it, in float64."""
    gate, up = (a.astype(np.float64) @ one.T.astype(np.float64) for one in b)
    return (gate / (1 + np.exp(-gate)) * up).astype(a.dtype)[None]


def tolerance(shape: tuple[int, ...], dtype: str) -> Tolerance:
    """One rounding to C's type, and sums of terms of about 1 that are cut off."""
    one = _gemm_types.tolerance(shape, dtype)
    return Tolerance(4 * float(ml_dtypes.finfo(dtype).eps), 8 * one.atol)


OPERATOR = Operator(
    name="gemm_gated",
    dims=("M", "N", "K"),
    parallel=("M", "N"),
    dtypes=("float16", "bfloat16"),
    knobs=KNOBS,
    compute=compute,
    schedule=schedule,
    check=check,
    reference=reference,
    inputs=inputs,
    flops=lambda shape: 4 * shape[0] * shape[1] * shape[2],
    tolerance=tolerance,
    fit=fit,
)
