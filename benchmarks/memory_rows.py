"""The memory-bound operations that :mod:`benchmarks.memory_bound` times, each with its peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvm_layout_ext import te
from tvm_layout_ext.schedules import elementwise, gather_rows, pad, slice
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.permute import permuted
from tvm_layout_ext.schedules.row_sum import compute as row_sum

__all__ = ["ROWS", "Row", "rows", "schedule"]

SIDE = 16384
IMAGES = (64, 256, 56, 56)
HEADS = (8, 4096, 32, 128)
SUMS = (32768, 4096)
#: Rows of a table, how many are picked, and their length.
GATHER = (131072, 65536, 1024)


@dataclass(frozen=True)
class Row:
    """One operation at one size.

    Attributes
    ----------
    name : str
    tensors : callable
        The computation: inputs, then the output.
    torch : callable
        From the inputs to the result.
    triton : callable
        ``triton(kernels, *inputs, out)`` writes the result.
    moved : int, optional
        Bytes that have to move; by default those of all tensors.
    is_sum : bool
        Reads only, so that reading is its limit, and adds in any order.
    """

    name: str
    tensors: Callable[[], list[Any]]
    torch: Callable[..., Any]
    triton: Callable[..., None]
    moved: int | None = None
    is_sum: bool = False

    def shapes(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each tensor, the output last."""
        return [(tuple(map(int, t.shape)), str(t.dtype)) for t in self.tensors()]

    def bytes(self) -> int:
        """Bytes that have to move: of a sum, those that it reads."""
        if self.moved is not None:
            return self.moved
        sizes = [prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.shapes()]
        return sum(sizes[:-1]) if self.is_sum else sum(sizes)


def schedule(tensors: list[Any]) -> te.Schedule:
    """Leave the mapping of the output to auto_coalesce."""
    s = te.create_schedule(tensors[-1].op)
    s[tensors[-1]].auto_coalesce()
    return s


def copied(shape: tuple[int, ...], dtype: str, to: str | None = None) -> list[Any]:
    """Copy, or cast."""
    a = te.placeholder(shape, dtype, "A")
    b = te.compute(shape, lambda *i: a[i].astype(to) if to else a[i], "B")
    return [a, b]


def _move(name: str, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Row:
    """Make the row of a permutation; Triton's kernel does it as a batch of transposes."""
    return Row(
        f"{name} {dtype}",
        lambda: permuted(shape, dtype, order),
        lambda a: a.permute(*order).contiguous(),
        lambda kernels, a, b: kernels.transpose(a, b, order),
    )


def _moves() -> list[Row]:
    square = (SIDE, SIDE)
    images_back = (IMAGES[0], *IMAGES[2:], IMAGES[1])
    return [
        *(_move("transpose", square, dtype, (1, 0)) for dtype in ("float32", "float16", "int8")),
        _move("NCHW to NHWC", IMAGES, "float16", (0, 2, 3, 1)),
        _move("NHWC to NCHW", images_back, "float16", (0, 3, 1, 2)),
        Row(
            "BSHD to BHSD float16",
            lambda: permuted(HEADS, "float16", (0, 2, 1, 3)),
            lambda a: a.transpose(1, 2).contiguous(),
            lambda kernels, a, b: kernels.swap_middle(a, b),
        ),
        Row(
            "copy float16",
            lambda: copied(square, "float16"),
            lambda a: a.clone(),
            lambda kernels, a, b: kernels.copy(a, b),
        ),
        Row(
            "cast float16 to float32",
            lambda: copied(square, "float16", "float32"),
            lambda a: a.float(),
            lambda kernels, a, b: kernels.copy(a, b),
        ),
    ]


def _sum_of(a: Any, dim: int) -> Any:
    import torch

    return a.sum(dim, dtype=torch.float32)


def _sums() -> list[Row]:
    return [
        Row(
            "row sum float16",
            lambda: row_sum(SUMS, "float16"),
            lambda a: _sum_of(a, 1),
            lambda kernels, a, b: kernels.row_sum(a, b),
            is_sum=True,
        ),
        Row(
            "column sum float16",
            lambda: column_sum(SUMS, "float16"),
            lambda a: _sum_of(a, 0),
            lambda kernels, a, b: kernels.column_sum(a, b),
            is_sum=True,
        ),
    ]


def _padded(a: Any) -> Any:
    import torch

    return torch.nn.functional.pad(a, (pad.WIDTH,) * 4)


def _others() -> list[Row]:
    square, (_, picked, length) = (SIDE, SIDE), GATHER
    return [
        Row(
            "elementwise float16",
            lambda: elementwise.compute(square, "float16"),
            lambda a, bias: (a + bias).relu(),
            lambda kernels, a, bias, c: kernels.elementwise(a, bias, c),
        ),
        Row(
            "pad float16",
            lambda: pad.compute(square, "float16"),
            _padded,
            lambda kernels, a, b: kernels.window(a, b, -pad.WIDTH),
        ),
        Row(
            "slice float16",
            lambda: slice.compute(square, "float16"),
            lambda a: a[slice.WIDTH : -slice.WIDTH, slice.WIDTH : -slice.WIDTH].contiguous(),
            lambda kernels, a, b: kernels.window(a, b, slice.WIDTH),
            moved=2 * SIDE * SIDE * 2,
        ),
        Row(
            "gather rows int32",
            lambda: gather_rows.compute(GATHER, "int32"),
            lambda table, rows: table[rows],
            lambda kernels, table, rows, b: kernels.gather_rows(table, rows, b),
            moved=picked * (2 * length + 1) * 4,
        ),
    ]


def rows() -> list[Row]:
    """All rows of the table."""
    return [*_moves(), *_sums(), *_others()]


#: Rows by name.
ROWS: dict[str, Row] = {row.name: row for row in rows()}
