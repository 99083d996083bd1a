"""The values of ``mma.sync``: what the lanes' registers hold after it.

Products of A and B are exact in float64, are added to C there, and the sum is rounded once, to
nearest even, to the type of D; integer sums are exact, and wrap or saturate at the end. A tf32
operand is the upper 19 bits of its register.

A GPU adds with less room: it aligns the products and C to the largest of them and cuts what lies
below some last bit (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor
cores", 2021). If it keeps the 24 bits of an f32, no element of an f32 GEMM of depth K is off by
more than ``K * 2**-22`` of ``sum(|a| * |b|)``; with an f16 accumulator, rounded at each of its K /
k instructions, by ``K / k * 2**-11``. Compare by a tolerance.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...gpu.tf32 import KEPT_BITS
from ...layout import DotOperandLayout
from .shapes import COLUMNS, ROWS, SUMS, Product, gather, scatter


def exact(elements: Any, dtype: str) -> Any:
    """Elements of a PTX type as tensor cores take them, which holds every product."""
    if dtype == "tf32":
        elements = (elements & np.uint32(KEPT_BITS)).view(np.float32)
    return elements.astype(np.float64)


def multiply(product: Product, a: Any, b: Any, c: Any) -> Any:
    """Elements of D, ``[4, threads]``, of those of A, B and C, ``[elements a lane, threads]``."""
    left = exact(_operand(product, 0, a), product.a)
    right = exact(_operand(product, 1, b), product.b)
    total = left @ right + gather(c, SUMS, ROWS, COLUMNS)
    if product.saturate:
        info = np.iinfo(np.int32)
        total = np.clip(total, info.min, info.max)
    return scatter(rounded(total, product.dtype("c")), SUMS)


def _operand(product: Product, index: int, elements: Any) -> Any:
    """Matrix A (0) or B (1) of each warp, of elements or their poison."""
    layout = DotOperandLayout(index, SUMS, 4 // product.dtype("ab"[index]).itemsize)
    shape = (product.k, COLUMNS) if index else (ROWS, product.k)
    return gather(elements, layout, *shape)


def rounded(total: Any, dtype: Any) -> Any:
    """Exact sums in float64 as those of a type; integers wrap."""
    return total.astype(np.int64).astype(dtype) if dtype.kind == "i" else total.astype(dtype)


def multiply_poison(product: Product, a: Any, b: Any, c: Any) -> Any:
    """Poison of D: that of a row of A, of a column of B, and of C; None if there is none."""
    if a is None and b is None and c is None:
        return None
    parts = []
    if a is not None:
        parts.append(_operand(product, 0, a).max(axis=2)[:, :, None])
    if b is not None:
        parts.append(_operand(product, 1, b).max(axis=1)[:, None, :])
    if c is not None:
        parts.append(gather(c, SUMS, ROWS, COLUMNS))
    shape = np.broadcast_shapes(*[part.shape for part in parts], (1, 16, 8))
    codes = np.zeros(shape, np.int64)
    for part in parts:
        codes = np.maximum(codes, part)
    return scatter(codes, SUMS) if codes.any() else None
