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


@triton.autotune(_LINEAR, key=["size"])
@triton.jit
def _elementwise(a, bias, c, size, width, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < size) + tl.load(bias + at % width, mask=at < size)
    tl.store(c + at, tl.maximum(value, 0.0), mask=at < size)


@triton.autotune(_LINEAR, key=["height", "width"])
@triton.jit
def _window(a, b, offset, in_height, in_width, height, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    from_row, from_column = row + offset, column + offset
    inside = (from_row >= 0) & (from_row < in_height)
    inside = inside & (from_column >= 0) & (from_column < in_width)
    value = tl.load(a + from_row.to(tl.int64) * in_width + from_column, mask=inside, other=0.0)
    tl.store(b + row.to(tl.int64) * width + column, value, mask=column < width)


@triton.autotune(
    [triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((256, 2), (512, 4), (1024, 4))],
    key=["width"],
)
@triton.jit
def _gather_rows(table, rows, b, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    source = tl.load(rows + row).to(tl.int64)
    value = tl.load(table + source * width + column, mask=column < width)
    tl.store(b + row * width + column, value, mask=column < width)


def elementwise(a: Any, bias: Any, c: Any) -> None:
    """Add the bias of each column, and rectify."""
    size = a.numel()
    _elementwise[lambda meta: (triton.cdiv(size, meta["BLOCK"]),)](a, bias, c, size, a.shape[1])


def window(a: Any, b: Any, offset: int) -> None:
    """``b[i, j] = a[i + offset, j + offset]``, zero outside: a slice or a pad."""
    height, width = b.shape

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return height, triton.cdiv(width, meta["BLOCK"])

    _window[grid](a, b, offset, *a.shape, height, width)


def gather_rows(table: Any, rows: Any, b: Any) -> None:
    """Copy the rows that are named."""
    picked, width = b.shape
    _gather_rows[lambda meta: (picked, triton.cdiv(width, meta["BLOCK"]))](table, rows, b, width)


def copy(a: Any, b: Any) -> None:
    """Copy, or cast."""
    _copy[lambda meta: (triton.cdiv(a.numel(), meta["BLOCK"]),)](a, b, a.numel())


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
