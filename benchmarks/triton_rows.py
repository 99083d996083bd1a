"""Triton's side of :mod:`benchmarks.rows`: a program has whole rows, or goes along one in steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

_KINDS = {"softmax": 0, "layer_norm": 1, "rms_norm": 2}
#: Elements of the longest row that a program has whole.
_WHOLE = 32768


@triton.jit
def _rows(a, w, b, out, height, width, KIND: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, BLOCK)[None, :]
    mask = (rows < height) & (columns < width)
    at = rows.to(tl.int64) * width + columns
    if KIND == 0:
        x = tl.load(a + at, mask=mask, other=float("-inf")).to(tl.float32)
        x = tl.exp(x - tl.max(x, 1)[:, None])
        y = x / tl.sum(x, 1)[:, None]
    else:
        x = tl.load(a + at, mask=mask, other=0.0).to(tl.float32)
        weights = tl.load(w + columns, mask=columns < width, other=0.0).to(tl.float32)
        if KIND == 1:
            x = tl.where(mask, x - tl.sum(x, 1)[:, None] / width, 0.0)
        y = x * tl.rsqrt(tl.sum(x * x, 1)[:, None] / width + 1e-5) * weights
        if KIND == 1:
            y += tl.load(b + columns, mask=columns < width, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=mask)


@triton.jit
def _long_row(a, w, b, out, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * width
    first = tl.full([BLOCK], float("-inf") if KIND == 0 else 0.0, tl.float32)
    second = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        x = tl.load(a + base + start + tl.arange(0, BLOCK)).to(tl.float32)
        if KIND == 0:
            most = tl.maximum(first, x)
            second = second * tl.exp(first - most) + tl.exp(x - most)
            first = most
        else:
            first += x
            second += x * x
    if KIND == 0:
        shift = tl.max(first, 0)
        factor = 1.0 / tl.sum(second * tl.exp(first - shift), 0)
    else:
        shift = tl.sum(first, 0) / width if KIND == 1 else 0.0
        factor = tl.rsqrt(tl.sum(second, 0) / width - shift * shift + 1e-5)
    for start in range(0, width, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(a + base + at).to(tl.float32) - shift
        if KIND == 0:
            y = tl.exp(x) * factor
        else:
            y = x * factor * tl.load(w + at).to(tl.float32)
            if KIND == 1:
                y += tl.load(b + at).to(tl.float32)
        tl.store(out + base + at, y.to(out.dtype.element_ty))


def bound(kind: str, inputs: list[Any], out: Any) -> Callable[[], None]:
    """Bind a kernel to its arguments."""
    a, *rest = inputs
    w, b = (*rest, a, a)[:2]
    height, width = a.shape
    number = _KINDS[kind]
    if width > _WHOLE:
        return lambda: _long_row[(height,)](a, w, b, out, width, number, 4096, num_warps=16)
    block = triton.next_power_of_2(width)
    rows = max(1, 2048 // block)
    warps = min(max(rows * block // 1024, 4), 32)
    grid = (triton.cdiv(height, rows),)
    return lambda: _rows[grid](a, w, b, out, height, width, number, rows, block, num_warps=warps)
