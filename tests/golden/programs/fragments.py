"""Register tiles, their layouts, and conversions between these."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.golden.programs.program import Program
from tests.programs.conversions import program, versioned_tiles
from tests.schedule.primitives import test_set_fragment_layout
from tests.transform.fragments.test_lower_fragment import copy_through
from tvm_layout_ext import layout as L

__all__ = ["programs"]

_ACCUMULATOR = L.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
_LAYOUTS: dict[str, Any] = {
    "rows": L.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0]),
    "columns": L.BlockedLayout([4, 1], [8, 4], [1, 4], [0, 1]),
    "pairs": L.BlockedLayout([1, 2], [4, 8], [4, 1], [1, 0]),
    "turned": L.BlockedLayout([1, 4], [4, 8], [4, 1], [0, 1]),
    "eights": L.BlockedLayout([1, 8], [8, 4], [2, 2], [1, 0]),
    "mma": _ACCUMULATOR,
    "operand": L.DotOperandLayout(0, _ACCUMULATOR, 2),
}
_THROUGH = [
    ("rows",),
    ("columns",),
    ("mma",),
    ("rows", "columns"),
    ("rows", "turned"),
    ("pairs", "eights"),
    ("mma", "rows"),
    ("rows", "operand"),
    ("columns", "mma", "rows"),
]
_LINE = ["F[vi] = A[vi]", "G[vi] = F[vi]", "O[vi] = G[vi] + T.float32(1)"]
_TILE = ["F[vi, vj] = A[vi, vj]", "G[vi, vj] = F[vi, vj]", "H[vi, vj] = G[vi, vj]"]
_STORE = "O[vi, vj] = H[vi, vj] * H[vi, vj]"


def _line() -> Any:
    layouts = [L.BlockedLayout([n], [32], [4], [0]) for n in (1, 4)]
    buffers = {n: ((1024,), "float32", one) for n, one in zip("FG", layouts, strict=True)}
    return program(dict.fromkeys("AO", ((1024,), "float32")), buffers, _LINE)


def _tile(dtype: str, *names: str) -> Any:
    buffers = {n: ((64, 64), dtype, _LAYOUTS[one]) for n, one in zip("FGH", names, strict=True)}
    return program(dict.fromkeys("AO", ((64, 64), dtype)), buffers, [*_TILE, _STORE])


def programs() -> Iterator[Program]:
    for names in _THROUGH:
        for dtype in ("float32", "float16"):
            made = partial(copy_through, [_LAYOUTS[n] for n in names], dtype=dtype)
            outputs = int(dtype == "float16")
            yield Program(f"fragment/{'-'.join(names)}-{dtype}", made, outputs)
    yield Program("fragment/scheduled", test_set_fragment_layout.scheduled, 1)
    yield Program("fragment/line", _line, 1)
    for names in (("rows", "mma", "columns"), ("rows", "columns", "rows")):
        for dtype in ("float16", "float32"):
            made = partial(_tile, dtype, *names)
            yield Program(f"fragment/combined-{'-'.join(names)}-{dtype}", made, 1)
    for stages in (1, 3):
        for swizzle in ("", "auto"):
            layouts = [_LAYOUTS["columns"], _LAYOUTS["rows"]]
            made = partial(versioned_tiles, layouts, stages, swizzle)
            yield Program(f"fragment/versions-{stages}-{swizzle or 'plain'}", made)
