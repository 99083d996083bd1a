"""Products to schedule for tensor cores, and what NumPy makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext import te
from tvm_layout_ext.schedules import gemm


def multiplied(
    shape: tuple[Any, Any, Any],
    dtype: str = "float16",
    sums: str = "float32",
    names: Sequence[str] = ("A", "B", "C"),
    *,
    a_transposed: bool = False,
    b_transposed: bool = False,
) -> list[te.Tensor]:
    """Two placeholders and their product, of m, n and k; an operand stored transposed if asked."""
    m, n, k = shape
    A = te.placeholder((k, m) if a_transposed else (m, k), dtype, names[0])
    B = te.placeholder((n, k) if b_transposed else (k, n), dtype, names[1])
    r = te.reduce_axis((0, k), "k")

    def element(i: Any, j: Any) -> Any:
        a, b = A[r, i] if a_transposed else A[i, r], B[j, r] if b_transposed else B[r, j]
        return te.sum(a.astype(sums) * b.astype(sums), axis=r)

    return [A, B, te.compute((m, n), element, names[2])]


@dataclass(frozen=True)
class Product:
    """``C = A @ B``, an operand stored transposed if asked, with bias and relu if asked."""

    operand: str = "float16"
    sums: str = "float32"
    out: str = "float32"
    shape: tuple[int, int, int] = (64, 64, 64)
    batch: int = 0
    a_transposed: bool = False
    b_transposed: bool = False
    epilogue: bool = False
    instruction: str = "auto"

    def func(self) -> Any:
        M, N, K = self.shape
        before = (self.batch,) if self.batch else ()
        A = te.placeholder((*before, *((K, M) if self.a_transposed else (M, K))), self.operand, "A")
        B = te.placeholder((*before, *((N, K) if self.b_transposed else (K, N))), self.operand, "B")
        bias = te.placeholder((N,), "float32", name="bias")
        k = te.reduce_axis((0, K), "k")

        def element(*at: Any) -> Any:
            *b, i, j = at
            a = A[(*b, k, i)] if self.a_transposed else A[(*b, i, k)]
            c = B[(*b, j, k)] if self.b_transposed else B[(*b, k, j)]
            wide = (x if self.operand == self.sums else x.astype(self.sums) for x in (a, c))
            first, second = wide
            return te.sum(first * second, axis=k)

        C = te.compute((*before, M, N), element, name="C")
        if not self.epilogue:
            D = te.compute((*before, M, N), lambda *at: C[at].astype(self.out), name="D")
            return te.create_prim_func([A, B, D]).with_attr("global_symbol", "main")
        Y = te.compute((*before, M, N), lambda *at: C[at] + bias[at[-1]], name="Y")
        D = te.compute((*before, M, N), lambda *at: te.max(Y[at], 0.0).astype(self.out), name="D")
        return te.create_prim_func([A, B, bias, D]).with_attr("global_symbol", "main")

    def inputs(self) -> tuple[list[Any], Any]:
        """Arguments of the function, the output left out, and the product in float64."""
        M, N, K = self.shape
        before = (self.batch,) if self.batch else ()
        rng = np.random.default_rng(7)
        low = 0 if self.operand == "uint8" else -8
        a, b = (
            rng.integers(low, 8, (*before, *size)).astype(_numpy(self.operand))
            if "int" in self.operand
            else _rounded(rng.standard_normal((*before, *size), np.float32), self)
            for size in ((M, K), (K, N))
        )
        want = a.astype(np.float64) @ b.astype(np.float64)
        bias = rng.standard_normal(N).astype(np.float32)
        stored = [_stored(a, self.a_transposed), _stored(b, self.b_transposed)]
        if self.epilogue:
            return [*stored, bias, None], np.maximum(want + bias, 0)
        return [*stored, None], want


def _rounded(values: Any, product: Product) -> Any:
    """Values of the operand's type; for tf32 such as its 10 bits of mantissa hold."""
    if product.operand == "float32":
        return values.astype(np.float16).astype(np.float32)
    return values.astype(_numpy(product.operand))


def _stored(values: Any, transposed: bool) -> Any:
    return np.ascontiguousarray(values.swapaxes(-1, -2)) if transposed else values


def _numpy(dtype: str) -> Any:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


def config(tile: tuple[int, int, int], warps: tuple[int, int] = (2, 2)) -> dict[str, Any]:
    names = ("tile_m", "tile_n", "tile_k", "warps_m", "warps_n")
    plain = gemm.OPERATOR.default_config() | {"stages": 1, "prefetch": 0}
    return plain | dict(zip(names, (*tile, *warps), strict=True))


def scheduled(
    product: Product, tile: tuple[int, int, int] = (64, 64, 64), warps: tuple[int, int] = (2, 2)
) -> s_tir.Schedule:
    sch = s_tir.Schedule(product.func())
    gemm.multiply(sch, "C", config(tile, warps), product.instruction)
    return sch


def simulated(product: Product, sch: s_tir.Schedule) -> Any:
    """Report of the simulated GPU without hazards, its output compared with float64."""
    arguments, want = product.inputs()
    report = tlx.simulate(sch.mod, *arguments)
    (got,) = report.outputs.values()
    narrow = {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(product.out, 0.0)
    sums = {"float16": 2.0**-10, "int32": 0.0}.get(product.sums, 2.0**-22) * product.shape[2]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=narrow, atol=sums * 2)
    assert report.hazards == []
    return report
