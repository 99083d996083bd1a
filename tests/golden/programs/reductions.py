"""Sums, maxima and what surrounds them, mapped by ``auto_coalesce``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod
from typing import Any

from tvm import s_tir, te, tirx, topi

from tests.golden.programs.program import Program

__all__ = ["programs"]

Shape = tuple[int, ...]
_SUMS: list[tuple[Shape, Shape, str]] = [
    ((64, 1024), (1,), "float16"),
    ((64, 1024), (1,), "float32"),
    ((33, 1000), (1,), "float16"),
    ((33, 7), (1,), "float32"),
    ((512, 256), (0,), "float16"),
    ((512, 256), (0,), "float32"),
    ((1021, 50), (0,), "float16"),
    ((33, 7), (0,), "float32"),
    ((100000, 33), (0,), "float32"),
    ((4, 64, 32), (1,), "float32"),
    ((4, 64, 32), (0, 2), "float16"),
    ((5, 6, 7, 64), (1, 2), "float32"),
    ((16, 16, 64), (0, 1), "int32"),
    ((1 << 18,), (0,), "float32"),
    ((2, 100000), (1,), "float16"),
    ((64, 1, 64), (1,), "float32"),
]


def _scheduled(*tensors: Any, blocks: Sequence[str] = ()) -> s_tir.Schedule:
    """Map each block, in the order of the program."""
    sch = s_tir.Schedule(te.create_prim_func(list(tensors)))
    children = sch.get_child_blocks(sch.get_sblock("root"))
    for name in blocks or [sch.get(block).name_hint for block in children]:
        sch.auto_coalesce(name)
    return sch


def _sum(shape: Shape, axes: Shape, dtype: str) -> s_tir.Schedule:
    a = te.placeholder(shape, dtype, "A")
    over = {axis: te.reduce_axis((0, shape[axis]), f"k{axis}") for axis in axes}
    wide = "int32" if dtype == "int32" else "float32"

    def element(*index: Any) -> Any:
        rest = list(index)
        where = [over[d] if d in over else rest.pop(0) for d in range(len(shape))]
        return te.sum(a[tuple(where)].astype(wide), list(over.values()))

    kept = [n for d, n in enumerate(shape) if d not in axes] or [1]
    if prod(kept) == 1:
        b = te.compute((1,), lambda _: element(), "B")
    else:
        b = te.compute(kept, element, "B")
    return _scheduled(a, b)


def _topi(shape: Shape, dtype: str, function: Any) -> s_tir.Schedule:
    a = te.placeholder(shape, dtype, "A")
    return _scheduled(a, function(a))


def _matrix_by_vector(rows: int, columns: int, dtype: str) -> s_tir.Schedule:
    a, x = te.placeholder((rows, columns), dtype, "A"), te.placeholder((columns,), dtype, "x")
    k = te.reduce_axis((0, columns), "k")
    wide = te.compute(
        (rows,), lambda i: te.sum(a[i, k].astype("float32") * x[k].astype("float32"), k), name="y"
    )
    return _scheduled(a, x, wide)


def _variance(rows: int, columns: int) -> s_tir.Schedule:
    """The second sum reads its matrix twice."""
    a, m = te.placeholder((rows, columns), "float32", "A"), te.placeholder((rows,), "float32", "m")
    k = te.reduce_axis((0, columns), "k")
    v = te.compute((rows,), lambda i: te.sum((a[i, k] - m[i]) * (a[i, k] - m[i]), k), name="v")
    return _scheduled(a, m, v)


def _normalised(rows: int, columns: int, dtype: str) -> s_tir.Schedule:
    """Root mean square of the rows, in two kernels."""
    a, k = te.placeholder((rows, columns), dtype, "A"), te.reduce_axis((0, columns), "k")
    square = te.compute(
        (rows,), lambda i: te.sum(a[i, k].astype("float32") * a[i, k].astype("float32"), k), "S"
    )
    scale = [tirx.const(1 / columns, "float32"), tirx.const(1e-5, "float32")]
    b = te.compute(
        (rows, columns),
        lambda i, j: (
            a[i, j].astype("float32") * tirx.rsqrt(square[i] * scale[0] + scale[1])
        ).astype(dtype),
        "B",
    )
    return _scheduled(a, b)


def _shared(name: str, cluster: int) -> s_tir.Schedule:
    """Rows that the blocks of a cluster share."""
    a = te.placeholder((3, 2100), "float32", "A")
    found = topi.argmax(a, 1) if name == "argmax" else topi.nn.softmax(a)
    sch = s_tir.Schedule(te.create_prim_func([a, found]).with_attr("global_symbol", "main"))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    sch.fuse_rows(blocks, cluster=cluster, num_threads=64)
    return sch


def programs() -> Iterator[Program]:
    for number, (shape, axes, dtype) in enumerate(_SUMS):
        name = f"sum-{'x'.join(map(str, shape))}-over-{''.join(map(str, axes))}-{dtype}"
        small = prod(shape) <= 1 << 17
        yield Program(
            f"reduce/{name}", partial(_sum, shape, axes, dtype), int(small and number % 2 == 0)
        )
    chains: dict[str, Any] = {
        "softmax": topi.nn.softmax,
        "log-softmax": topi.nn.log_softmax,
        "max-of-columns": lambda a: topi.max(a, 0),
        "argmax-of-rows": lambda a: topi.argmax(a, 1),
        "min-of-all": lambda a: topi.min(a, (0, 1), keepdims=True),
    }
    for name, function in chains.items():
        for shape in ((64, 512), (33, 70)):
            size = "x".join(map(str, shape))
            yield Program(f"reduce/{name}-{size}", partial(_topi, shape, "float32", function))
    of_bytes: dict[str, Any] = {
        "argmax-of-rows": chains["argmax-of-rows"],
        "argmin-of-columns": lambda a: topi.argmin(a, 0),
        "max-of-columns": chains["max-of-columns"],
        "min-of-rows": lambda a: topi.min(a, 1),
    }
    for name, function in of_bytes.items():
        dtype = "uint8" if "min" in name else "int8"
        yield Program(f"reduce/{name}-64x512-{dtype}", partial(_topi, (64, 512), dtype, function))
    for cluster, name in ((2, "argmax"), (8, "softmax")):
        yield Program(f"reduce/{name}-of-clusters-{cluster}", partial(_shared, name, cluster), 1)
    for dtype in ("float16", "float32"):
        yield Program(f"reduce/by-vector-{dtype}", partial(_matrix_by_vector, 64, 512, dtype), 1)
        yield Program(f"reduce/rms-{dtype}", partial(_normalised, 64, 256, dtype))
    yield Program("reduce/variance", partial(_variance, 64, 256), 1)
