"""Triton's side of :mod:`benchmarks.memory_bound`: plain kernels, autotuned over a few tiles."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import triton
import triton.language as tl

_LINEAR = [triton.Config({"BLOCK": b}, num_warps=w) for b, w in ((1024, 4), (4096, 8), (8192, 8))]
_TILES = [
    triton.Config({"ROWS": r, "COLUMNS": c}, num_warps=w)
    for r, c, w in ((32, 32, 4), (64, 64, 4), (64, 64, 8), (128, 64, 8), (64, 128, 8))
]
_SUM_TILES = [
    triton.Config({"ROWS": r, "COLUMNS": c}, num_warps=w)
    for r, c, w in ((1, 4096, 4), (4, 1024, 4), (32, 64, 4), (128, 32, 8), (64, 64, 8))
]


@triton.autotune(_LINEAR, key=["size"])
@triton.jit
def _copy(a, b, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(b + at, tl.load(a + at, mask=at < size), mask=at < size)


@triton.jit
def _read(a, b, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.load(a + at, mask=at < size, other=0.0))
    # Never true, but the compiler cannot know that.
    if total == 1.2345e30:
        tl.store(b, total)


@triton.autotune(_TILES, key=["height", "width"])
@triton.jit
def _transpose(a, b, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    base = tl.program_id(2).to(tl.int64) * height * width
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (rows[:, None] < height) & (columns[None, :] < width)
    tile = tl.load(a + base + rows[:, None].to(tl.int64) * width + columns[None, :], mask=mask)
    out = b + base + columns[:, None].to(tl.int64) * height + rows[None, :]
    tl.store(out, tl.trans(tile), mask=tl.trans(mask))


@triton.jit
def _swap_middle(a, b, S, H, D: tl.constexpr, ROWS: tl.constexpr):
    batch, head = tl.program_id(1).to(tl.int64), tl.program_id(2)
    s = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    mask = (s < S)[:, None]
    tile = tl.load(a + ((batch * S + s[:, None]) * H + head) * D + d[None, :], mask=mask)
    tl.store(b + ((batch * H + head) * S + s[:, None]) * D + d[None, :], tile, mask=mask)


@triton.autotune(_SUM_TILES, key=["height", "width"])
@triton.jit
def _row_sum(a, b, height, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        mask = (rows[:, None] < height) & (columns[None, :] < width)
        at = rows[:, None].to(tl.int64) * width + columns[None, :]
        total += tl.load(a + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(b + rows, tl.sum(total, axis=1), mask=rows < height)


@triton.autotune(_SUM_TILES, key=["height", "width"], reset_to_zero=["b"])
@triton.jit
def _column_sum(a, b, height, width, DEEP: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(tl.program_id(1) * DEEP, (tl.program_id(1) + 1) * DEEP, ROWS):
        rows = start + tl.arange(0, ROWS)
        mask = (rows[:, None] < height) & (columns[None, :] < width)
        at = rows[:, None].to(tl.int64) * width + columns[None, :]
        total += tl.load(a + at, mask=mask, other=0.0).to(tl.float32)
    tl.atomic_add(b + columns, tl.sum(total, axis=0), mask=columns < width)


def copy(a: Any, b: Any) -> None:
    """Copy, or cast."""
    _copy[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, a.numel())


def read(a: Any, b: Any) -> None:
    """Read everything and write nothing."""
    _read[(triton.cdiv(a.numel(), 8192),)](a, b, a.numel(), BLOCK=8192, num_warps=8)


def transpose(a: Any, b: Any, order: tuple[int, ...]) -> None:
    """Permute by exchanging two groups of neighbouring dims, the last ones."""
    first = next(d for d, dim in enumerate(order) if d != dim)
    turned = order[first]
    batch = prod(a.shape[:first])
    height, width = prod(a.shape[first:turned]), prod(a.shape[turned:])

    def grid(meta: dict[str, int]) -> tuple[int, int, int]:
        return triton.cdiv(height, meta["ROWS"]), triton.cdiv(width, meta["COLUMNS"]), batch

    _transpose[grid](a, b, height, width)


def swap_middle(a: Any, b: Any) -> None:
    """Exchange dims 1 and 2 of four."""
    batch, rows, heads, depth = a.shape
    _swap_middle[(triton.cdiv(rows, 32), batch, heads)](a, b, rows, heads, D=depth, ROWS=32)


def row_sum(a: Any, b: Any) -> None:
    """Sum each row."""
    height, width = a.shape
    _row_sum[lambda meta: (triton.cdiv(height, meta["ROWS"]),)](a, b, height, width)


def column_sum(a: Any, b: Any) -> None:
    """Sum each column, in slabs of rows that meet in atomic additions."""
    height, width = a.shape
    b.zero_()
    deep = 512

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(width, meta["COLUMNS"]), triton.cdiv(height, deep)

    _column_sum[grid](a, b, height, width, DEEP=deep)


assert torch.version.cuda, "Triton's kernels need a CUDA build of torch."
