"""Blocks that move elements, mapped by ``auto_coalesce``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from tvm import s_tir, te

from tests.golden.programs.program import Program
from tests.programs.patterns import Pattern, all_patterns, padded, selected, sliced

__all__ = ["coalesced", "programs"]

#: One in so many is simulated.
_SIMULATED = 5


def coalesced(tensors: list[Any], **request: Any) -> s_tir.Schedule:
    """Map the block that writes the last tensor."""
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    sch.auto_coalesce(tensors[-1].op.name, **request)
    return sch


def _shifted() -> dict[str, Pattern]:
    """Rows that lie askew: a shuffle and shifts bring them into place."""
    return {
        "slice-16x64-at-1x3-float32-float32": sliced((20, 100), (1, 3), (16, 64), "float32"),
        "slice-16x64-at-1x3-int8-float32": sliced((20, 100), (1, 3), (16, 64), "int8", "float32"),
        "slice-9x129-at-0x1-float16-float16": sliced((9, 130), (0, 1), (9, 129), "float16"),
        "pad-30x61-by-1x3-float16-float16": padded((30, 61), (1, 3), (1, 0), "float16"),
        "pad-30x62-by-0x1-float32-float32": padded((30, 62), (0, 1), (0, 1), "float32", value=1.0),
        "pad-7x250-by-0x3-int8-int8": padded((7, 250), (0, 3), (0, 3), "int8"),
        "select-16x96-of-5-to-90-float16": selected((16, 96), (5, 90), "float16"),
    }


def programs() -> Iterator[Program]:
    for number, pattern in enumerate(all_patterns()):
        outputs = int(number % _SIMULATED == 0)
        yield Program(
            f"move/{pattern.name}", lambda p=pattern: coalesced(p.tensors()), outputs=outputs
        )
    for name, move in _shifted().items():
        yield Program(
            f"move/askew-{name}", lambda m=move: coalesced(m.tensors(name="A")), outputs=1
        )
    turned = next(p for p in all_patterns() if p.name == "permute-64x128-10-float32")
    requests: dict[str, dict[str, Any]] = {
        "threads-64": {"num_threads": 64},
        "vector-4": {"vector_bytes": 4},
        "unstaged": {"stage": "none"},
    }
    for name, request in requests.items():
        yield Program(f"move/turned-{name}", partial(_asked, turned, request), outputs=1)
    for arch in ("sm_75", "sm_80", "sm_100a"):
        yield Program(f"move/turned-{arch}", partial(_asked, turned, {}), arch=arch)


def _asked(pattern: Any, request: dict[str, Any]) -> s_tir.Schedule:
    return coalesced(pattern.tensors(), **request)
