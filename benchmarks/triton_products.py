"""Triton's side of the suites of products and of attention, as its tutorials write these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

#: Tile, warps and stages of a product; those that are measured first.
_TILES = (
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (64, 128, 64, 4, 4),
    (16, 128, 128, 4, 4),
)
#: Programs of neighbouring rows that share what they read of B.
_GROUP = 8


@triton.autotune(
    [
        triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
        for m, n, k, warps, stages in _TILES
    ],
    key=["rows", "columns", "terms"],
)
@triton.jit
def _product(
    a, b, c, rows, columns, terms, b_row, b_column,
    GROUP: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    down, across = tl.cdiv(rows, M), tl.cdiv(columns, N)
    band = tl.program_id(0) // (GROUP * across)
    height = min(down - band * GROUP, GROUP)
    place = tl.program_id(0) % (GROUP * across)
    row = (band * GROUP + place % height) * M + tl.arange(0, M)
    column = place // height * N + tl.arange(0, N)
    term = tl.arange(0, K)
    # Beyond the ends one reads other rows, whose results are not stored.
    left = a + (row % rows)[:, None].to(tl.int64) * terms + term[None, :]
    right = b + term[:, None] * b_row + (column % columns)[None, :].to(tl.int64) * b_column
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, terms, K):
        x = tl.load(left, mask=term[None, :] < terms - start, other=0.0)
        y = tl.load(right, mask=term[:, None] < terms - start, other=0.0)
        total = tl.dot(x, y, total)
        left += K
        right += K * b_row
    at = c + row[:, None].to(tl.int64) * columns + column[None, :]
    mask = (row[:, None] < rows) & (column[None, :] < columns)
    tl.store(at, total.to(c.dtype.element_ty), mask=mask)


def product(a: Any, b: Any, c: Any, layout: str) -> Callable[[], None]:
    """``c = a @ b``, or with layout ``nt`` ``a @ b.t()``."""
    (m, k), n = a.shape, c.shape[1]
    strides = (1, k) if layout == "nt" else (n, 1)

    def grid(meta: Any) -> tuple[int]:
        return (triton.cdiv(m, meta["M"]) * triton.cdiv(n, meta["N"]),)

    return lambda: _product[grid](a, b, c, m, n, k, *strides, GROUP=_GROUP)


@triton.autotune(
    [
        triton.Config({"M": 128, "N": n}, num_warps=warps, num_stages=stages)
        for n, warps, stages in ((128, 8, 2), (64, 8, 3), (64, 4, 3))
    ],
    key=["queries", "keys", "D", "CAUSAL"],
)
@triton.jit
def _attention(
    q, k, v, out, queries, keys, share, scale,
    D: tl.constexpr, PAD: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0) * M, tl.program_id(1).to(tl.int64)
    row, column, key = first + tl.arange(0, M), tl.arange(0, PAD), tl.arange(0, N)
    inside = (row[:, None] < queries) & (column[None, :] < D)
    at = (head * queries + row[:, None]) * D + column[None, :]
    x = tl.load(q + at, mask=inside, other=0.0)
    begin = head // share * keys * D
    most = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    result = tl.zeros((M, PAD), tl.float32)
    # A query sees the keys up to its own; the last query sees all.
    last = tl.minimum(keys, first + M + keys - queries) if CAUSAL else keys
    for start in range(0, last, N):
        y = tl.load(
            k + begin + (start + key)[None, :] * D + column[:, None],
            mask=((start + key)[None, :] < keys) & (column[:, None] < D), other=0.0,
        )  # fmt: skip
        scores = tl.dot(x, y) * scale
        seen = (start + key)[None, :] < keys
        if CAUSAL:
            seen = seen & ((start + key)[None, :] <= row[:, None] + keys - queries)
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(most - higher)
        total = total * fade + tl.sum(weights, 1)
        z = tl.load(
            v + begin + (start + key)[:, None] * D + column[None, :],
            mask=((start + key)[:, None] < keys) & (column[None, :] < D), other=0.0,
        )  # fmt: skip
        result = tl.dot(weights.to(z.dtype), z, result * fade[:, None])
        most = higher
    tl.store(out + at, (result / total[:, None]).to(out.dtype.element_ty), mask=inside)


def attention(q: Any, k: Any, v: Any, out: Any, *, causal: bool) -> Callable[[], None]:
    """Attention without scores in memory; heads of K and V may be shared."""
    batch, heads, m, d = q.shape
    n, share = k.shape[2], heads // k.shape[1]
    scale = d**-0.5 * 1.4426950408889634  # Powers of 2 in the place of those of e.

    def grid(meta: Any) -> tuple[int, int]:
        return triton.cdiv(m, meta["M"]), batch * heads

    pad = triton.next_power_of_2(d)
    return lambda: _attention[grid](q, k, v, out, m, n, share, scale, D=d, PAD=pad, CAUSAL=causal)
