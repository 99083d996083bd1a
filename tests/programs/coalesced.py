"""What tests of ``auto_coalesce`` share: programs, values to move, counts of what moved them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import s_tir
from tvm.s_tir.schedule.testing import verify_trace_roundtrip

from tests.programs.running import gives
from tvm_layout_ext.simulate import Report


def numbers(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Whole numbers that every type holds, so that results can be compared exactly."""
    return np.random.default_rng(0).integers(-100, 100, tuple(shape)).astype(dtype)


def few(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Numbers from -9 to 9, of which sums and products are exact, too."""
    return np.random.default_rng(len(shape)).integers(-9, 10, shape).astype(dtype)


def mapped(func: Any, *arrays: Any, block: str = "B", **request: Any) -> tuple[Any, Report]:
    """Map a block, replay the trace, and run it without hazards: the outcome and the report."""
    sch = s_tir.Schedule(func)
    outcome = sch.auto_coalesce(block, **request)
    verify_trace_roundtrip(sch, func, debug_mask="none")
    return outcome, gives(sch, *arrays)


def sectors(report: Report, buffer: str, *kinds: str) -> int:
    """Sectors of 32 bytes of all requests of a buffer, loads and stores unless told which."""
    found = (a for a in report.accesses if a.buffer == buffer and (not kinds or a.kind in kinds))
    return sum(access.sectors for access in found)


def widths(report: Report, buffer: str) -> set[int]:
    """Bytes of a lane in the requests of a buffer that move anything."""
    return {a.vector_bytes for a in report.accesses if a.buffer == buffer and a.sectors}


def nests(buffers: str, *blocks: str, symbols: str = "", kind: str = "int64") -> Any:
    """Write a function of blocks, each in loops of its own.

    ``nests("A 64x99 int8, B 64", "S: i 64, k 99: B[vi] += A[vi, vk]")``. Loops whose names begin
    with ``k`` are summed over; statements of a block are parted by ``;``. A buffer may have more
    arguments of ``T.match_buffer``: ``"A 64x99 float32 strides=(100,1)"``.
    """
    lines = [f"    {name} = T.{kind}()" for name in symbols.split()]
    names = []
    for one in buffers.split(", "):
        name, shape, *more = one.split()
        dtype, *more = more or ["float32"]
        names.append(name)
        sizes = ", ".join(shape.split("x"))
        rest = "".join(f", {argument}" for argument in more)
        lines.append(f'    {name} = T.match_buffer({name.lower()}, ({sizes},), "{dtype}"{rest})')
    for one in blocks:
        name, loops, body = one.split(": ", 2)
        pairs = [loop.split() for loop in loops.split(", ")]
        grid = ", ".join(size for _, size in pairs)
        lines.append(f"    for {', '.join(loop for loop, _ in pairs)} in T.grid({grid}):")
        lines.append(f'        with T.sblock("{name}"):')
        inner = [
            f"v{loop} = T.axis.{'reduce' if loop[0] == 'k' else 'spatial'}({size}, {loop})"
            for loop, size in pairs
        ]
        for statement in body.split("; "):
            target, plus, value = statement.partition(" += ")
            if plus:
                inner += ["with T.init():", f"    {target} = T.float32(0)"]
            inner.append(f"{target} = {target} + {value}" if plus else statement)
        lines += [f"            {line}" for line in inner]
    head = f"def main({', '.join(f'{name.lower()}: T.handle' for name in names)}):"
    return tvm.script.from_source("\n".join(["@T.prim_func(s_tir=True)", head, *lines]))
