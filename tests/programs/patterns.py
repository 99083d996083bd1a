"""Blocks that move elements, and the sectors in which their elements lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import te, tirx

SECTOR = 32
#: Where the flat index of an element is told from what fills a border.
_FAR = 1 << 40


@dataclass(frozen=True)
class Pattern:
    """A block that moves elements.

    ``body(tensors, indices)`` gives an element, ``numpy`` the output of the inputs, which are cast
    to ``to``, the output's type, first. ``index`` says which input holds row numbers, of
    ``index_type``.
    """

    name: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    body: Callable[[Sequence[Any], Sequence[Any]], Any]
    numpy: Callable[..., np.ndarray]
    to: str | None = None
    index: int | None = None
    index_type: str = "int32"

    @property
    def stored(self) -> str:
        """Type of the output."""
        return self.to or self.dtype

    def tensors(self, of_index: str = "int32", name: str = "A{}") -> list[te.Tensor]:
        """Placeholders, and the output B; loops count in ``of_index``."""
        *sources, shape = (
            [tirx.IntImm(of_index, n) for n in s] for s in (*self.inputs, self.shape)
        )
        held = [
            te.placeholder(
                source, self.index_type if i == self.index else self.dtype, name.format(i)
            )
            for i, source in enumerate(sources)
        ]
        return [*held, te.compute(shape, lambda *i: self.body(held, i), "B")]

    def arrays(self) -> list[np.ndarray]:
        """Values of which no two neighbours are equal."""
        return [
            (np.arange(prod(shape)) * 7 % self.inputs[0][0]).astype(self.index_type).reshape(shape)
            if i == self.index
            else ((np.arange(prod(shape)) + 50 * i) % 113 - 56).astype(self.dtype).reshape(shape)
            for i, shape in enumerate(self.inputs)
        ]

    def expected(self, *arrays: np.ndarray) -> np.ndarray:
        """Output of the inputs."""
        return self.numpy(*(a.astype(self.to) if self.to else a for a in arrays))

    def places(self, number: int) -> np.ndarray:
        """Flat index in an input of each element of the output, below 0 where there is none."""
        numbers = [np.zeros(shape, "int64") for shape in self.inputs]
        numbers[number] = _FAR + np.arange(prod(self.inputs[number])).reshape(self.inputs[number])
        return self.numpy(*numbers) - _FAR

    def distinct_sectors(self) -> dict[str, int]:
        """Sectors of each buffer in which elements lie that must be touched, by their addresses."""
        found = {"B": _distinct(np.arange(prod(self.shape)), self.stored)}
        for number in range(len(self.inputs)):
            found[f"A{number}"] = _distinct(self.places(number), self.dtype)
        return found


def _distinct(places: np.ndarray, dtype: str) -> int:
    """Sectors that elements at these places lie in; places below 0 are none."""
    return len(np.unique(places[places >= 0] * np.dtype(dtype).itemsize // SECTOR))


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))


def copy(shape: tuple[int, ...], dtype: str, to: str | None = None) -> Pattern:
    """Copy, or cast."""
    return Pattern(
        f"{'cast' if to else 'copy'}-{_sizes(shape)}-{dtype}" + (f"-{to}" if to else ""),
        dtype,
        (shape,),
        shape,
        lambda t, i: t[0][tuple(i)].astype(to) if to else t[0][tuple(i)],
        lambda a: a,
        to,
    )


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> Pattern:
    """Permute the dims."""
    where = [order.index(d) for d in range(len(order))]
    return Pattern(
        f"permute-{_sizes(shape)}-{''.join(map(str, order))}-{dtype}",
        dtype,
        (shape,),
        tuple(shape[d] for d in order),
        lambda t, i: t[0][tuple(i[w] for w in where)],
        lambda a: a.transpose(order),
    )


def broadcast(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Pattern:
    """Repeat along some axes, and add to a whole tensor."""
    return Pattern(
        f"broadcast-{_sizes(shape)}-{''.join(map(str, axes))}-{dtype}",
        dtype,
        (tuple(n for d, n in enumerate(shape) if d not in axes), shape),
        shape,
        lambda t, i: t[0][tuple(x for d, x in enumerate(i) if d not in axes)] + t[1][tuple(i)],
        lambda a, b: b + np.expand_dims(a, axes),
    )


def sliced(
    shape: tuple[int, ...],
    starts: tuple[int, ...],
    sizes: tuple[int, ...],
    dtype: str,
    to: str | None = None,
) -> Pattern:
    """Cut out a box, and perhaps cast it."""

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        value = t[0][tuple(x + s for x, s in zip(i, starts, strict=True))]
        return value.astype(to) if to else value

    return Pattern(
        f"slice-{_sizes(sizes)}-of-{_sizes(shape)}-{dtype}" + (f"-{to}" if to else ""),
        dtype,
        (shape,),
        sizes,
        body,
        lambda a: a[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))],
        to,
    )


def padded(
    shape: tuple[int, ...],
    before: tuple[int, ...],
    after: tuple[int, ...],
    dtype: str,
    to: str | None = None,
    value: float = 0,
) -> Pattern:
    """Put a border around, and perhaps cast."""
    widths = list(zip(before, after, strict=True))

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        inside = [
            part for x, b, n in zip(i, before, shape, strict=True) for part in (x >= b, x < n + b)
        ]
        moved = t[0][tuple(x - b for x, b in zip(i, before, strict=True))]
        moved = moved.astype(to) if to else moved
        return tirx.if_then_else(tirx.all(*inside), moved, tirx.const(value, to or dtype))

    return Pattern(
        f"pad-{_sizes(shape)}-{_sizes(before)}-{dtype}" + (f"-{to}" if to else ""),
        dtype,
        (shape,),
        tuple(n + b + a for n, (b, a) in zip(shape, widths, strict=True)),
        body,
        lambda a: np.pad(a, widths, constant_values=value),
        to,
    )


def selected(shape: tuple[int, ...], columns: tuple[int, int], dtype: str) -> Pattern:
    """Keep the columns from one to before another, and have 0 elsewhere."""
    first, last = columns
    held = (np.arange(shape[-1]) >= first) & (np.arange(shape[-1]) < last)

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        inside = tirx.all(i[-1] >= first, i[-1] + (shape[-1] - last) < shape[-1])
        return tirx.Select(inside, t[0][tuple(i)], tirx.const(0, dtype))

    return Pattern(
        f"select-{_sizes(shape)}-of-{first}-to-{last}-{dtype}",
        dtype,
        (shape,),
        shape,
        body,
        lambda a: np.where(held, a, np.zeros_like(a)),
    )


def strided(length: int, step: int, dtype: str) -> Pattern:
    """Every n-th element."""
    return Pattern(
        f"stride-{length}-{step}-{dtype}",
        dtype,
        ((length * step,),),
        (length,),
        lambda t, i: t[0][i[0] * step],
        lambda a: a[::step],
    )


def every_other_row(rows: int, columns: int, step: int, dtype: str) -> Pattern:
    """Whole rows, some left out."""
    return Pattern(
        f"rows-{rows}x{columns}-{step}-{dtype}",
        dtype,
        ((rows * step, columns),),
        (rows, columns),
        lambda t, i: t[0][i[0] * step, i[1]],
        lambda a: a[::step],
    )


def gathered(
    rows: int, picked: int, columns: tuple[int, ...], dtype: str, index_type: str = "int32"
) -> Pattern:
    """Rows, or elements where there are no columns, by number."""
    return Pattern(
        f"gather-{_sizes((picked, *columns))}-{dtype}-{index_type}",
        dtype,
        ((rows, *columns), (picked,)),
        (picked, *columns),
        lambda t, i: t[0][(t[1][i[0]], *i[1:])],
        lambda a, r: a[r],
        index=1,
        index_type=index_type,
    )


def stacked(top: int, bottom: int, columns: int, dtype: str) -> Pattern:
    """Two matrices, one above the other."""

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        return tirx.if_then_else(i[0] < top, t[0][i[0], i[1]], t[1][i[0] - top, i[1]])

    return Pattern(
        f"stack-{top}+{bottom}x{columns}-{dtype}",
        dtype,
        ((top, columns), (bottom, columns)),
        (top + bottom, columns),
        body,
        lambda a, b: np.concatenate([a, b], 0),
    )


def concatenated(rows: int, left: int, right: int, dtype: str) -> Pattern:
    """Two matrices side by side."""

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        return tirx.if_then_else(i[1] < left, t[0][i[0], i[1]], t[1][i[0], i[1] - left])

    return Pattern(
        f"concat-{rows}x{left}+{right}-{dtype}",
        dtype,
        ((rows, left), (rows, right)),
        (rows, left + right),
        body,
        lambda a, b: np.concatenate([a, b], 1),
    )


_DTYPES = ("int8", "float16", "float32", "float64")
_COPIED = (
    (1,), (7,), (33,), (1000,), (4097,), (33, 7), (1000, 33), (3, 5, 7), (2, 3, 4, 33),
    (2, 3, 2, 5, 16),
)  # fmt: skip
_TURNED = [
    *((64, 128, dtype) for dtype in _DTYPES), (128, 64, "float16"), (256, 128, "int8"),
    (33, 7, "float32"), (1000, 33, "float32"), (7, 33, "float64"), (1, 33, "float32"),
    (4097, 7, "float16"), (100, 72, "float32"), (33, 1000, "int8"), (7, 1000, "float32"),
    (4096, 34, "float32"), (300, 7, "int8"),
]  # fmt: skip


def all_patterns() -> list[Pattern]:
    """Every pattern of the matrix."""
    copies = [
        copy(shape, dtype)
        for i, shape in enumerate(_COPIED)
        for dtype in (_DTYPES[i % 4], _DTYPES[(i + 2) % 4])
    ]
    return [
        *copies,
        copy((1000,), "float16", "float32"),
        copy((33, 64), "float32", "float16"),
        copy((4097,), "int8", "float64"),
        *(permuted((n, m), (1, 0), dtype) for n, m, dtype in _TURNED),
        *(permuted((2, 64, 8, 8), (0, 2, 3, 1), dtype) for dtype in _DTYPES),
        permuted((2, 6, 6, 64), (0, 3, 1, 2), "float32"),
        permuted((2, 16, 4, 64), (0, 2, 1, 3), "float16"),
        permuted((8, 9, 10), (2, 1, 0), "float32"),
        permuted((4, 5, 6, 7), (3, 1, 0, 2), "float32"),
        permuted((2, 3, 4, 5, 6), (4, 2, 0, 3, 1), "float32"),
        permuted((16, 16, 2), (1, 0, 2), "float32"),
        permuted((2, 3, 4, 2, 2, 8), (0, 5, 1, 3, 2, 4), "float16"),
        permuted((2, 16, 2, 3, 2, 32), (5, 0, 4, 2, 3, 1), "float32"),
        broadcast((64, 96), (0,), "float32"),
        broadcast((64, 96), (1,), "float32"),
        broadcast((33, 7), (0,), "float64"),
        broadcast((5, 33, 8), (1,), "float16"),
        broadcast((4, 6, 64), (0, 1), "float32"),
        sliced((64, 64), (0, 16), (64, 32), "float32"),
        sliced((33, 40), (1, 8), (20, 16), "float16"),
        sliced((50, 50), (3, 1), (33, 7), "float32"),
        sliced((8, 16, 64), (1, 0, 0), (4, 8, 64), "int8"),
        padded((62, 60), (1, 4), (1, 0), "float32"),
        padded((33, 7), (1, 1), (1, 1), "float32"),
        padded((30, 32), (0, 16), (2, 16), "float16"),
        concatenated(33, 16, 32, "float32"),
        concatenated(20, 7, 9, "float32"),
        stacked(16, 17, 64, "float32"),
        stacked(5, 3, 7, "float16"),
        *(strided(*one) for one in ((1000, 2, "float32"), (33, 3, "float64"), (4097, 4, "int8"))),
        every_other_row(33, 64, 2, "float16"),
        every_other_row(20, 7, 3, "float32"),
        gathered(50, 33, (64,), "float32"),
        gathered(20, 100, (7,), "float16"),
        gathered(50, 33, (64,), "int8", "int64"),
        gathered(20, 100, (7,), "float32", "int64"),
        *(gathered(100, 1000, (), "float32", kind) for kind in ("int32", "int64")),
        sliced((64, 64), (0, 4), (64, 20), "float16"),
    ]
