"""Access patterns for auto_coalesce, and the sectors in which their elements lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

SECTOR = 32


@dataclass(frozen=True)
class Pattern:
    """A block that moves elements.

    ``body(tensors, indices)`` gives an element, ``numpy`` the output of the inputs,
    ``source(indices)`` for arrays of output indices the flat index in input 0, or -1; ``more`` are
    such functions of the other inputs. ``to`` is the output's type where it differs, ``index`` says
    which input holds row numbers, of ``index_type``.
    """

    name: str
    dtype: str
    inputs: tuple[tuple[int, ...], ...]
    shape: tuple[int, ...]
    body: Callable[[Sequence[Any], Sequence[Any]], Any]
    numpy: Callable[..., np.ndarray]
    source: Callable[[Sequence[np.ndarray]], np.ndarray]
    to: str | None = None
    index: int | None = None
    index_type: str = "int32"
    more: tuple[Callable[[Sequence[np.ndarray]], np.ndarray], ...] = ()

    def tensors(self) -> list[Any]:
        """Placeholders, and the output B."""
        held = [
            te.placeholder(shape, self.index_type if i == self.index else self.dtype, f"A{i}")
            for i, shape in enumerate(self.inputs)
        ]
        return [*held, te.compute(self.shape, lambda *i: self.body(held, i), "B")]

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Random inputs."""
        return [
            rng.integers(0, self.inputs[0][0], shape).astype(self.index_type)
            if i == self.index
            else rng.integers(-100, 100, shape).astype(self.dtype)
            for i, shape in enumerate(self.inputs)
        ]

    def distinct_sectors(self) -> dict[str, int]:
        """Sectors of each buffer in which elements lie that must be touched, by their addresses."""
        at = list(np.indices(self.shape).reshape(len(self.shape), -1))
        size, stored = (np.dtype(t).itemsize for t in (self.dtype, self.to or self.dtype))
        found = {"B": _distinct(np.arange(len(at[0])), stored)}
        for number, source in enumerate((self.source, *self.more)):
            found[f"A{number}"] = _distinct(source(at), size)
        return found


def _distinct(places: np.ndarray, size: int) -> int:
    """Sectors that elements at these places lie in; places below 0 are none."""
    return len(np.unique(places[places >= 0] * size // SECTOR))


def _flat(shape: Sequence[int], indices: Sequence[np.ndarray]) -> np.ndarray:
    return np.ravel_multi_index(tuple(indices), tuple(shape))


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
        lambda a: a.astype(to or dtype),
        lambda i: _flat(shape, i),
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
        lambda i: _flat(shape, [i[w] for w in where]),
    )


def broadcast(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Pattern:
    """Repeat along some axes, and add to a whole tensor."""
    small = tuple(n for d, n in enumerate(shape) if d not in axes)

    def pick(i: Sequence[Any]) -> list[Any]:
        return [x for d, x in enumerate(i) if d not in axes]

    def numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return b + np.expand_dims(a, axes)

    return Pattern(
        f"broadcast-{_sizes(shape)}-{''.join(map(str, axes))}-{dtype}",
        dtype,
        (small, shape),
        shape,
        lambda t, i: t[0][tuple(pick(i))] + t[1][tuple(i)],
        numpy,
        lambda i: _flat(small, pick(i)),
        more=(lambda i: _flat(shape, i),),
    )


def sliced(
    shape: tuple[int, ...], starts: tuple[int, ...], sizes: tuple[int, ...], dtype: str
) -> Pattern:
    """Cut out a box."""
    return Pattern(
        f"slice-{_sizes(sizes)}-of-{_sizes(shape)}-{dtype}",
        dtype,
        (shape,),
        sizes,
        lambda t, i: t[0][tuple(x + s for x, s in zip(i, starts, strict=True))],
        lambda a: a[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))],
        lambda i: _flat(shape, [x + s for x, s in zip(i, starts, strict=True)]),
    )


def padded(
    shape: tuple[int, ...], before: tuple[int, ...], after: tuple[int, ...], dtype: str
) -> Pattern:
    """Put zeros around."""
    size = tuple(n + b + a for n, b, a in zip(shape, before, after, strict=True))

    def body(t: Sequence[Any], i: Sequence[Any]) -> Any:
        inside = [
            part for x, b, n in zip(i, before, shape, strict=True) for part in (x >= b, x < n + b)
        ]
        moved = tuple(x - b for x, b in zip(i, before, strict=True))
        return tirx.if_then_else(tirx.all(*inside), t[0][moved], tirx.const(0, dtype))

    def source(i: Sequence[np.ndarray]) -> np.ndarray:
        moved = [x - b for x, b in zip(i, before, strict=True)]
        inside = np.all([(m >= 0) & (m < n) for m, n in zip(moved, shape, strict=True)], axis=0)
        clipped = [np.clip(m, 0, n - 1) for m, n in zip(moved, shape, strict=True)]
        return np.where(inside, _flat(shape, clipped), -1)

    return Pattern(
        f"pad-{_sizes(shape)}-{_sizes(before)}-{dtype}",
        dtype,
        (shape,),
        size,
        body,
        lambda a: np.pad(a, list(zip(before, after, strict=True))),
        source,
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
        lambda i: i[0] * step,
    )


def every_other_row(rows: int, columns: int, step: int, dtype: str) -> Pattern:
    """Whole rows, some left out."""
    shape = (rows * step, columns)
    return Pattern(
        f"rows-{rows}x{columns}-{step}-{dtype}",
        dtype,
        (shape,),
        (rows, columns),
        lambda t, i: t[0][i[0] * step, i[1]],
        lambda a: a[::step],
        lambda i: _flat(shape, [i[0] * step, i[1]]),
    )


def gathered(
    rows: int, picked: int, columns: int, dtype: str, index_type: str = "int32"
) -> Pattern:
    """Rows by number."""
    return Pattern(
        f"gather-{picked}x{columns}-{dtype}-{index_type}",
        dtype,
        ((rows, columns), (picked,)),
        (picked, columns),
        lambda t, i: t[0][t[1][i[0]], i[1]],
        lambda a, r: a[r],
        lambda i: np.full_like(i[0], -1),
        index=1,
        more=(lambda i: i[0],),
        index_type=index_type,
    )


def gathered_elements(size: int, picked: int, dtype: str, index_type: str) -> Pattern:
    """Elements by number."""
    return Pattern(
        f"gather-{picked}-{dtype}-{index_type}",
        dtype,
        ((size,), (picked,)),
        (picked,),
        lambda t, i: t[0][t[1][i[0]]],
        lambda a, r: a[r],
        lambda i: np.full_like(i[0], -1),
        index=1,
        more=(lambda i: i[0],),
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
        lambda i: np.where(i[0] < top, np.minimum(i[0], top - 1) * columns + i[1], -1),
        more=(lambda i: np.where(i[0] >= top, np.maximum(i[0] - top, 0) * columns + i[1], -1),),
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
        lambda i: np.where(i[1] < left, i[0] * left + np.minimum(i[1], left - 1), -1),
        more=(lambda i: np.where(i[1] >= left, i[0] * right + np.maximum(i[1] - left, 0), -1),),
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
        gathered(50, 33, 64, "float32"),
        gathered(20, 100, 7, "float16"),
        gathered(50, 33, 64, "int8", "int64"),
        gathered(20, 100, 7, "float32", "int64"),
        *(gathered_elements(100, 1000, "float32", kind) for kind in ("int32", "int64")),
        sliced((64, 64), (0, 4), (64, 20), "float16"),
    ]
