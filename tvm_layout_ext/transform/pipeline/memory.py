"""Whether the versions of a pipeline fit in shared memory, and how many would."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ...errors import ScheduleError, TargetError
from ...gpu import hardware
from ...ir.annotations import NUM_STAGES
from ...ir.rebuild import block_with
from .parts import Part, blocks_in, requested
from .plan import plan_pipeline
from .record import PipelineRecord


def check_fits(record: PipelineRecord, parts: Sequence[Part], loop: Any, target: Any) -> None:
    """Refuse a pipeline whose versions alone need more shared memory than a block may have.

    All versions of a loop's buffers are in use at once, so no later pass can let them share memory.
    ``build`` compares the sum that is left after merging, and asks :func:`most_stages`.
    """
    limits = _limits(target)
    if limits is None:
        return
    arch, most = limits
    for scopes, limit, kind in (
        (("shared", "shared.dyn"), most, "shared memory"),
        (("shared",), min(most, hardware.STATIC_SHARED_BYTES), 'memory of scope "shared"'),
    ):
        held = [b for b in record.buffers if b.scope in scopes]
        needed = sum(b.bytes for b in held)
        if needed > limit:
            each = ", ".join(f"{b.name} {b.versions} x {b.version_bytes:,}" for b in held)
            bytes_of = {b.name: b.version_bytes for b in held}
            sizes = {s.place: bytes_of[s.fills] for s in record.steps if s.fills in bytes_of}
            raise ScheduleError(
                f"The buffer versions of loop {record.loop} need {needed:,} bytes of {kind} "
                f"({each}), and a block on {arch} may have {limit:,}; "
                f"{_advice(parts, loop, sizes, limit)}"
                f"{'' if limit == most else f', or scope shared.dyn, which may have {most:,}'}."
            )


def _limits(target: Any) -> tuple[str, int] | None:
    """Architecture and bytes a block may have, for CUDA targets in the table."""
    if target is None or target.kind.name != "cuda":
        return None
    try:
        facts = hardware.architecture(str(target.attrs["arch"]))
    except TargetError:
        return None
    return facts.name, facts.shared_per_block


def _advice(parts: Sequence[Part], loop: Any, sizes: dict[int, int], limit: int) -> str:
    """The largest number of stages that fits, found by planning again with fewer."""
    asked = max(part.num_stages or 1 for part in parts)
    # Bytes never fall with the number, and there may be 2^31 of them.
    fits = bisect_right(
        range(1, asked), limit, key=lambda number: _bytes(parts, loop, sizes, number)
    )
    if fits:
        return f"num_stages={fits} is the largest that fits"
    return "not even one version fits, so take smaller tiles"


def _bytes(parts: Sequence[Part], loop: Any, sizes: dict[int, int], number: int) -> int:
    fewer = [replace(p, num_stages=min(p.num_stages, number)) if p.num_stages else p for p in parts]
    plan = plan_pipeline(fewer, loop)
    return sum(size * (1 if plan is None else plan.versions[i]) for i, size in sizes.items())


def most_stages(mod: tvm.IRModule, fits: Callable[[tvm.IRModule], bool]) -> int:
    """Largest number of stages, below the one asked for, with which a module fits; 0 if none does.

    Only lowering tells which buffers can share memory, so each of log2 trials is a lowering.
    """
    bodies = [f.body for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    asked = max((requested(b) or 1 for body in bodies for b in blocks_in(body)), default=1)
    return bisect_right(range(1, asked), 0, key=lambda n: int(not fits(_at_most(mod, n))))


def _at_most(mod: tvm.IRModule, number: int) -> tvm.IRModule:
    def look(block: SBlock) -> SBlock:
        if (requested(block) or 1) <= number:
            return block
        return block_with(block, annotations={**block.annotations, NUM_STAGES: number})

    def change(func: Any) -> Any:
        if not isinstance(func, tirx.PrimFunc):
            return func
        return func.with_body(tvm_ffi.structural_map(func.body, [(SBlock, look)], order="post"))

    return tvm.IRModule({gv: change(f) for gv, f in mod.functions.items()}, attrs=mod.attrs)
