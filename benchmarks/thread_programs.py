"""Programs that move or reduce one array, named by what they do, for mappings to be compared on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import tirx

from tvm_layout_ext import te

__all__ = ["ALONG_ROWS", "OF_GROUPS", "PROGRAMS", "Program"]

#: Types in which sums are added up.
_SUMS = {"float16": "float32", "int8": "int32", "uint8": "int32"}


@dataclass(frozen=True)
class Program:
    """A movement or a reduction of one array.

    Attributes
    ----------
    kind : str
        ``copy`` (or cast), ``permute``, ``bias``, ``slice``, ``pad``, ``concat``, ``broadcast``,
        ``sum``, ``mean``, ``max`` or ``argmax``.
    shape : tuple of int
        Of the first input.
    dtype : str
    axes : tuple of int
        The order of a permutation, or the axes that are reduced; of a slice or a broadcast, the
        shape of the result; of a pad, what each axis gets on both sides; of a concatenation, the
        axis and how much of it the second input has.
    to : str
        Type of the result, of a copy.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...] = ()
    to: str = ""

    @property
    def name(self) -> str:
        """Such as ``sum-300000x257-float16-1``."""
        sizes = "x".join(map(str, self.shape))
        axes = ("x" if max(self.axes, default=0) > 9 else "").join(map(str, self.axes))
        parts = [self.kind, sizes, self.dtype, axes, self.to]
        return "-".join(part for part in parts if part)

    @property
    def reduces(self) -> bool:
        """Whether it is a reduction."""
        return self.kind in ("sum", "mean", "max", "argmax")

    @property
    def blocks(self) -> list[str]:
        """Names of the blocks; a mean divides a sum."""
        return ["S", "B"] if self.kind == "mean" else ["B"]

    def tensors(self) -> list[Any]:
        """The input, or inputs, then the results; the last block is ``B``."""
        a = te.placeholder(self.shape, self.dtype, "A")
        if self.kind in _WINDOWS:
            return _WINDOWS[self.kind](a, self.axes)
        if self.kind == "permute":
            shape = [self.shape[axis] for axis in self.axes]
            places = [self.axes.index(axis) for axis in range(len(self.shape))]
            return [a, te.compute(shape, lambda *i: a[tuple(i[p] for p in places)], "B")]
        if self.kind == "bias":
            bias = te.placeholder(self.shape[-1:], self.dtype, "bias")
            return [a, bias, te.compute(self.shape, lambda *i: a[i] + bias[i[-1]], "B")]
        if self.kind in ("copy", "slice"):
            shape = self.axes if self.kind == "slice" else self.shape
            cast = self.to or self.dtype
            return [a, te.compute(shape, lambda *i: a[i].astype(cast), "B")]
        return [a, *self._reduced(a)]

    def _reduced(self, a: Any) -> list[Any]:
        """The results of a reduction."""
        axes = [te.reduce_axis((0, self.shape[axis]), f"k{axis}") for axis in self.axes]
        kept = [n for axis, n in enumerate(self.shape) if axis not in self.axes] or [1]

        def at(indices: tuple[Any, ...]) -> tuple[Any, ...]:
            free, summed = iter(indices), iter(axes)
            ranks = range(len(self.shape))
            return tuple(next(summed) if axis in self.axes else next(free) for axis in ranks)

        if self.kind == "max":
            return [te.compute(kept, lambda *i: te.max(a[at(i)], axis=axes), "B")]
        if self.kind in ("sum", "mean"):
            wide = _SUMS.get(self.dtype, self.dtype)
            name = self.blocks[0]
            total = te.compute(kept, lambda *i: te.sum(a[at(i)].astype(wide), axis=axes), name)
            count = prod(self.shape[axis] for axis in self.axes)
            divided = lambda *i: total[i] * tirx.const(1 / count, wide)  # noqa: E731
            return [total if self.kind == "sum" else te.compute(kept, divided, "B")]
        best = te.comm_reducer(_larger, lambda i, v: (tirx.const(-1, i), tirx.min_value(v)))
        number = axes[0].var
        return list(te.compute(kept, lambda *i: best((number, a[at(i)]), axis=axes), "B"))

    def function(self) -> Any:
        """The TensorIR function."""
        return te.create_prim_func(self.tensors())

    def torch(self, *inputs: Any) -> list[Any]:
        """The results by torch, as wide as ours."""
        return self.peer()(*inputs)

    def peer(self) -> Callable[..., list[Any]]:
        """What computes the results by torch, with nothing in it that torch cannot compile."""
        import torch

        axes, shape = self.axes, self.results()[0][0]
        wide = getattr(torch, _SUMS.get(self.dtype, self.dtype))
        to = getattr(torch, self.to or self.dtype)
        window = tuple(slice(n) for n in axes)
        around = [n for n in reversed(axes) for _ in range(2)]
        return {
            "permute": lambda a: [a.permute(axes).contiguous()],
            "bias": lambda a, b: [a + b],
            "slice": lambda a: [a[window].contiguous()],
            "pad": lambda a: [torch.nn.functional.pad(a, around)],
            "concat": lambda a, b: [torch.cat([a, b], axes[0])],
            "broadcast": lambda a: [a.expand(shape).contiguous()],
            "copy": lambda a: [a.to(to) if to != a.dtype else a.clone()],
            "max": lambda a: [a.amax(axes).reshape(shape)],
            "argmax": lambda a: [*a.max(axes[0])][::-1],
            "sum": lambda a: [a.sum(axes, dtype=wide).reshape(shape)],
            "mean": lambda a: [a.mean(axes, dtype=wide).reshape(shape)],
        }[self.kind]

    def results(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each result."""
        count = 2 if self.kind == "argmax" else 1
        return [(tuple(map(int, t.shape)), str(t.dtype)) for t in self.tensors()[-count:]]

    def inputs(self) -> list[tuple[tuple[int, ...], str]]:
        """Shape and type of each input."""
        if self.kind == "mean":
            return [(self.shape, self.dtype)]
        count = 2 if self.kind == "argmax" else 1
        return [(tuple(map(int, t.shape)), str(t.dtype)) for t in self.tensors()[:-count]]

    def bytes(self) -> int:
        """Bytes that have to move."""
        sides = self.inputs() if self.reduces else [*self.inputs(), *self.results()]
        if self.kind == "slice":
            sides = [*self.results(), *self.results()]
        return sum(prod(shape) * int(tvm.DataType(dtype).itemsize) for shape, dtype in sides)


def _larger(left: Any, right: Any) -> tuple[Any, Any]:
    """Which of two (index, value) has the larger value, of equal ones the lower index."""
    ahead = tirx.any(left[1] > right[1], tirx.all(left[1] == right[1], left[0] < right[0]))
    value = tirx.Select(left[1] > right[1], left[1], right[1])
    return tirx.Select(ahead, left[0], right[0]), value


def _padded(a: Any, widths: Sequence[int]) -> list[Any]:
    """Zeros around an array."""
    shape = [n + 2 * width for n, width in zip(a.shape, widths, strict=True)]
    zero = tirx.const(0, str(a.dtype))

    def value(*i: Any) -> Any:
        at = [index - width for index, width in zip(i, widths, strict=True)]
        wide = [axis for axis, width in enumerate(widths) if width]
        inside = [part for n in wide for part in (at[n] >= 0, at[n] < a.shape[n])]
        return tirx.if_then_else(tirx.all(*inside), a[tuple(at)], zero) if wide else a[tuple(at)]

    return [a, te.compute(shape, value, "B")]


def _joined(a: Any, axes: Sequence[int]) -> list[Any]:
    """Another array behind one, along an axis."""
    axis, more = axes
    shape = [n + more * (at == axis) for at, n in enumerate(a.shape)]
    b = te.placeholder([more if at == axis else n for at, n in enumerate(a.shape)], a.dtype, "A2")
    first = a.shape[axis]

    def value(*i: Any) -> Any:
        behind = tuple(index - first * (at == axis) for at, index in enumerate(i))
        return tirx.if_then_else(i[axis] < first, a[i], b[behind])

    return [a, b, te.compute(shape, value, "B")]


def _repeated(a: Any, shape: Sequence[int]) -> list[Any]:
    """An array along axes of which it has one element."""
    at = [0 if int(n) == 1 else None for n in a.shape]

    def value(*i: Any) -> Any:
        return a[tuple(n if one is None else one for n, one in zip(i, at, strict=True))]

    return [a, te.compute(shape, value, "B")]


_WINDOWS: dict[str, Callable[[Any, Sequence[int]], list[Any]]] = {
    "pad": _padded,
    "concat": _joined,
    "broadcast": _repeated,
}


def _listed() -> Iterator[Program]:
    half, single, byte = "float16", "float32", "int8"
    for shape, dtype, to in [
        ((8192, 8192), half, ""), ((4096, 8191), single, ""), ((33333333,), single, ""),
        ((9001, 10001), byte, ""), ((8192, 4096), single, half), ((4096, 12288), half, single),
        ((6000, 7000), byte, single), ((300000, 257), half, ""),
    ]:  # fmt: skip
        yield Program("copy", shape, dtype, (), to)
    yield Program("bias", (30000, 2500), half)
    yield Program("slice", (8192, 8192), half, (8000, 7777))
    for shape, dtype, order in [
        ((4096, 4096), single, (1, 0)), ((8192, 8192), half, (1, 0)), ((8192, 12288), byte, (1, 0)),
        ((10001, 5003), half, (1, 0)), ((3001, 5003), single, (1, 0)),
        ((1000000, 33), single, (1, 0)), ((33, 1000000), half, (1, 0)),
        ((64, 1024, 512), half, (0, 2, 1)), ((256, 384, 320), half, (2, 0, 1)),
        ((150, 250, 350), single, (1, 2, 0)), ((512, 512, 64), single, (1, 0, 2)),
        ((7, 2048, 2048), byte, (2, 1, 0)), ((300, 200, 400), half, (2, 1, 0)),
        ((4, 64, 48, 96, 32), byte, (0, 3, 1, 2, 4)), ((48, 80, 56, 128), half, (3, 2, 1, 0)),
        ((16, 96, 113, 113), half, (0, 2, 3, 1)), ((32, 56, 56, 256), single, (0, 3, 1, 2)),
        ((8, 1024, 32, 128), half, (0, 2, 1, 3)), ((100, 99, 98, 33), half, (1, 3, 0, 2)),
    ]:  # fmt: skip
        yield Program("permute", shape, dtype, order)
    for kind, shape, dtype, axes in [
        ("sum", (4096, 8192), single, (1,)), ("sum", (16384, 4096), half, (1,)),
        ("sum", (300000, 257), half, (1,)), ("sum", (200000, 100), single, (1,)),
        ("sum", (2000000, 7), single, (1,)), ("sum", (16, 2097152), half, (1,)),
        ("sum", (1, 16777216), single, (1,)), ("sum", (64, 1000003), half, (1,)),
        ("sum", (65536, 1000), byte, (1,)), ("sum", (8192, 4096), single, (0,)),
        ("sum", (32768, 2048), half, (0,)), ("sum", (1000000, 33), single, (0,)),
        ("sum", (300000, 128), single, (0,)), ("sum", (400000, 100), single, (0,)),
        ("sum", (16777216, 2), half, (0,)), ("sum", (16777216, 1), single, (0,)),
        ("sum", (2048, 20000), single, (0,)), ("sum", (64, 512, 1024), single, (1,)),
        ("sum", (8, 1000000, 4), half, (1,)), ("sum", (128, 8192, 33), single, (1,)),
        ("sum", (2048, 4096, 3), half, (0, 1)), ("sum", (32, 65536, 17), half, (0, 1)),
        ("sum", (64, 512, 1024), half, (0, 2)), ("sum", (32, 96, 113, 113), half, (0, 2, 3)),
        ("sum", (32, 96, 113, 113), half, (2, 3)), ("max", (10007, 4999), half, (1,)),
        ("max", (10007, 4999), half, (0,)), ("max", (32768, 1000), single, (0,)),
        ("argmax", (32768, 1000), single, (1,)), ("argmax", (65536, 1000), half, (0,)),
        ("argmax", (8388608, 2), single, (0,)), ("argmax", (8, 1000000, 4), single, (1,)),
        ("argmax", (16, 1048576), single, (1,)), ("argmax", (2048, 4096, 3), single, (1,)),
    ]:  # fmt: skip
        yield Program(kind, shape, dtype, axes)


PROGRAMS: dict[str, Program] = {one.name: one for one in _listed()}
#: Reductions along rows; those of an odd length begin inside of vectors.
ALONG_ROWS: dict[str, Program] = {
    one.name: one
    for kind, dtype, shapes in [
        ("sum", "float16", [(300000, 257), (1000000, 67), (32768, 4096), (4000000, 64)]),
        ("sum", "float16", [(16, 2097152), (128, 131072), (30000, 2500)]),
        ("sum", "int8", [(100000, 1001)]),
        ("max", "float32", [(15000, 4099), (70000, 513)]),
        ("argmax", "float32", [(65536, 1000), (65536, 1001)]),
        ("argmax", "int8", [(65536, 1000), (65536, 1001)]),
    ]
    for one in (Program(kind, shape, dtype, (1,)) for shape in shapes)
}
#: Sums of groups of channels of images, as group norms of Stable Diffusion add them up: images,
#: pixels, groups, and channels of each.
OF_GROUPS: dict[str, Program] = {
    one.name: one
    for shape in [
        *[(1, 512 * 512, 32, 4), (1, 512 * 512, 32, 8), (1, 256 * 256, 32, 16)],
        *[(1, 4096, 32, 16), (2, 4096, 32, 10), (2, 4096, 32, 20), (2, 4096, 32, 30)],
        *[(2, 1024, 32, 20), (2, 256, 32, 40), (16, 4096, 32, 10)],
    ]
    for one in [Program("sum", shape, "float16", (1, 3))]
}
