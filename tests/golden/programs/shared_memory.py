"""Tiles in shared memory: swizzles, paddings, and copies that ``auto_coalesce`` maps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.golden.programs.program import Program
from tests.programs import swizzles, tiles

__all__ = ["programs"]

_MODES = ("none", "pad", "xor", "auto", 32, 64, 128)


def _copied(maker: Any, dtype: str, **more: Any) -> Any:
    sch, tile = maker(dtype, **more)
    sch.auto_coalesce(tile)
    return sch


def programs() -> Iterator[Program]:
    for mode in _MODES:
        for columns in (32, 64):
            made = partial(swizzles.operand, mode, rows=64, columns=columns)
            if (mode, columns) != (128, 32):  # Rows of 64 bytes have no such swizzle.
                yield Program(f"swizzle/operand-{columns}-{mode}", made, int(columns == 64))
    for mode in ("none", "pad", "xor", "auto"):
        for dtype, vector in (("float32", 4), ("float16", 8), ("int8", 16), ("float64", 2)):
            made = partial(swizzles.transpose, mode, dtype, vector=vector)
            yield Program(f"swizzle/transpose-{dtype}-{mode}", made)
    for stages in (2, 3):
        made = partial(swizzles.transpose, "auto", vector=4, num_stages=stages, tiles=4)
        yield Program(f"swizzle/transpose-{stages}-versions", made, 1)
    for mode in ("xor", "auto"):
        for stages in (1, 3):
            modes = {"A": mode, "B": mode}
            made = partial(swizzles.gemm, modes, num_stages=stages)
            yield Program(f"swizzle/gemm-{mode}-{stages}", made)
    for dtype in ("float32", "float16", "int8"):
        made = partial(_copied, tiles.transposed, dtype, rows=128, columns=96)
        yield Program(f"tile/transposed-{dtype}", made, 1)
    for cached in ("read", "write"):
        made = partial(_copied, tiles.upside_down, "float16", columns=72, cached=cached)
        yield Program(f"tile/upside-down-{cached}", made, 1)
