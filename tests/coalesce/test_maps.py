"""Which thread map a program gets: a table of programs, requests and what is chosen.

Nothing is run, so shapes are as large as programs have them. A new strategy has a row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tvm import s_tir, te

from tests.programs.patterns import padded, sliced


@dataclass(frozen=True)
class Case:
    """A program, what is asked, and the beginning of what is told of it."""

    name: str
    program: Callable[[], Sequence[Any]]
    expected: str
    request: dict[str, Any] = field(default_factory=dict)


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: str) -> Sequence[Any]:
    a = te.placeholder(shape, dtype, "A")
    place = [order.index(dim) for dim in range(len(order))]
    out = [shape[dim] for dim in order]
    return [a, te.compute(out, lambda *i: a(*(i[at] for at in place)), "B")]


def symmetrised(n: int, dtype: str) -> Sequence[Any]:
    a = te.placeholder((n, n), dtype, "A")
    return [a, te.compute((n, n), lambda i, j: a[i, j] + a[j, i], "B")]


def summed(shape: tuple[int, int], axis: int) -> Sequence[Any]:
    a, k = te.placeholder(shape, "float32", "A"), te.reduce_axis((0, shape[axis]), "k")
    at = (lambda i: a[k, i]) if axis == 0 else (lambda i: a[i, k])
    return [a, te.compute((shape[1 - axis],), lambda i: te.sum(at(i), axis=k), "B")]


FLAT = "direct, vector i0*i1 8, lane i0*i1 32, warp i0*i1 {}, block i0*i1 rest;"
CASES = [
    Case("copy", lambda: permuted((4096, 4096), (0, 1), "float16"), FLAT.format(4)),
    Case(
        "copy of 256 threads",
        lambda: permuted((4096, 4096), (0, 1), "float16"),
        FLAT.format(8),
        {"num_threads": 256},
    ),
    Case(
        "copy of narrow vectors",
        lambda: permuted((4096, 4096), (0, 1), "float32"),
        "direct, lane i0*i1 32, warp i0*i1 4, register i0*i1 4, block i0*i1 rest;",
        {"vector_bytes": 4},
    ),
    Case(
        "heads",
        lambda: permuted((8, 1024, 32, 128), (0, 2, 1, 3), "float16"),
        "direct, vector i0*i1*i2*i3 8, lane i0*i1*i2*i3 32, warp i0*i1*i2*i3 4",
    ),
    Case(
        "columns of a wider matrix",
        lambda: sliced((1 << 16, 64), (0, 4), (1 << 16, 20), "float16").tensors(),
        "direct, vector i1 4, lane i1 8 i0 4, warp i0 4, block i1 rest i0 rest;",
    ),
    Case(
        "pad",
        lambda: padded((4000, 8001), (1, 1), (1, 1), "float16").tensors(),
        "shifted, vector i0*i1 8, lane i0*i1 32",
    ),
    Case(
        "transpose",
        lambda: permuted((4096, 4096), (1, 0), "float16"),
        "staged, tile 128x128, 1024 threads, swizzled",
    ),
    Case(
        "odd transpose",
        lambda: permuted((10001, 15003), (1, 0), "float16"),
        "staged, tile 128x128, 256 threads, rows where vectors lie",
    ),
    Case(
        "images of odd size",
        lambda: permuted((32, 96, 113, 113), (0, 2, 3, 1), "float16"),
        "staged, tile 128x64, 256 threads, rows where vectors lie",
    ),
    Case(
        "transpose without tiles",
        lambda: permuted((4096, 4096), (1, 0), "float32"),
        "direct, lane",
        {"stage": "none"},
    ),
    Case(
        "two orders of one buffer",
        lambda: symmetrised(4096, "float32"),
        "when the program is lowered, staged, tile 64x64",
    ),
    Case(
        "sums of few long columns", lambda: summed((1000000, 33), 0), "reduction, reduction across"
    ),
    Case("sums of rows", lambda: summed((32768, 4096), 1), "reduction, reduction along the rows"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_choice(case: Case) -> None:
    sch = s_tir.Schedule(te.create_prim_func(list(case.program())))
    outcome = sch.auto_coalesce("B", **case.request)
    assert outcome.text.startswith(case.expected)
    assert outcome.seconds <= outcome.seconds_before * 1.02 + 1e-6


def test_what_was_slower_or_not_possible_is_told() -> None:
    sch = s_tir.Schedule(te.create_prim_func(list(permuted((4096, 4096), (1, 0), "float16"))))
    outcome = sch.auto_coalesce("B")
    assert any(
        one.startswith("direct, lane i0*i1 32") and one.endswith(" us") for one in outcome.lost
    )
    assert outcome.report.count("\nnot ") == len(outcome.lost)
