"""What no GPU of the task can launch, found once a candidate is scheduled and before it is built.

Ready schedules know from the knobs alone which combinations are legal. A user's own schedule does
not say; what it makes of them does.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from ... import decisions
from ...build import check_fits, device_program, lower
from ...errors import LayoutExtError, TargetError
from ...gpu.hardware import STATIC_SHARED_BYTES, Architecture, launch_problem
from ...ir.vector_types import lacking, lanes_of_type
from ...target import cuda_target
from ..model.features import kernels_of
from .alignment import misaligned, seems_misaligned
from .knobs import Refusal
from .live_registers import too_many_sums

__all__ = [
    "ALIGNMENT",
    "LAUNCH",
    "LOWERING",
    "REGISTERS",
    "SCHEDULE",
    "SHARED",
    "VECTORS",
    "over_limits",
]

#: Rules, as reports count them.
LAUNCH, SHARED = "threads and blocks", "shared memory"
REGISTERS, ALIGNMENT, VECTORS = "registers", "alignment", "vector types"
SCHEDULE, LOWERING = "refused by the schedule", "refused by lowering"


def over_limits(module: tvm.IRModule, architecture: Architecture) -> Refusal | None:
    """Say which limit of the GPU a scheduled module breaks, or None if it seems to break none.

    Thread extents, tiles and vectors are read off the schedule, which takes some ten milliseconds
    and may count too much: buffers that are not in use together share their place. Only what these
    put under suspicion is lowered, a second for a large kernel on tensor cores, and then judged as
    ``tlx.build`` would, and by the types and the addresses of its vectors. Sums that surely find no
    room in registers are counted without lowering.

    Parameters
    ----------
    module : tvm.IRModule
        As the schedule left it.
    architecture : Architecture

    Examples
    --------
    >>> over_limits(sch.mod, architecture("sm_90a"))  # doctest: +SKIP
    Refusal(rule='shared memory', text='Kernel main_kernel needs 65,536 bytes of static ...')
    """
    target, rule = cuda_target(architecture.name), None
    with decisions.collect():
        try:
            rule = _suspicion(module, architecture)
            for kernel in kernels_of(module):
                if text := too_many_sums(kernel, architecture):
                    return Refusal(REGISTERS, text)
            if rule is None and any(map(seems_misaligned, kernels_of(module))):
                rule = ALIGNMENT
            if rule is None and _has_odd_vectors(module, architecture):
                rule = VECTORS
            if rule is not None:
                lowered = lower(module, target=target)
                check_fits(lowered, target)
                return _lacking(lowered, architecture) or _misaligned(lowered, target)
        except TargetError as error:
            return Refusal(rule or LOWERING, str(error))
        except LayoutExtError as error:
            found = rule if rule in (ALIGNMENT, VECTORS) else LOWERING
            return Refusal(found, str(error))
    return None


def _has_odd_vectors(module: tvm.IRModule, architecture: Architecture) -> bool:
    """Whether a vectorized loop has a length that some type in it has no vectors of."""
    odd: list[bool] = []

    def look(loop: tirx.For) -> None:
        if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, int | tirx.IntImm):
            return
        extent = int(loop.extent)

        def judge(node: Any) -> None:
            lanes = lanes_of_type(str(node), architecture.capability)
            odd.append(lanes is not None and extent > 1 and extent not in lanes)

        tvm_ffi.structural_walk(
            loop.body,
            [
                (tvm.ir.TensorLoad, lambda one: judge(one.ty)),
                (tirx.BufferStore, lambda one: judge(one.value.ty)),
                (tirx.Cast, lambda one: judge(one.ty)),
            ],
        )

    for _, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc):
            tvm_ffi.structural_walk(function.body, [(tirx.For, look)])
    return any(odd)


def _lacking(lowered: tvm.IRModule, architecture: Architecture) -> Refusal | None:
    for _, function in lowered.functions_items():
        if text := lacking(function, architecture.capability):
            return Refusal(VECTORS, text)
    return None


def _misaligned(lowered: tvm.IRModule, target: Target) -> Refusal | None:
    for name, kernel in device_program(lowered, target=target).kernels.items():
        if text := misaligned(name, kernel):
            return Refusal(ALIGNMENT, text)
    return None


def _suspicion(module: tvm.IRModule, architecture: Architecture) -> str | None:
    """The rule that a module may break."""
    for _, function in module.functions_items():
        extents = _extents(function)
        if launch_problem(extents, architecture.threads_per_block):
            return LAUNCH
    for kernel in kernels_of(module):
        shared = [
            (site.scope, kernel.tiles[key].bytes)
            for key, site in {s.buffer.__chandle__(): s for s in kernel.sites}.items()
            if site.scope.startswith("shared")
        ]
        static = sum(size for scope, size in shared if scope == "shared")
        every = sum(size for _, size in shared)
        if static > STATIC_SHARED_BYTES or every > architecture.shared_per_block:
            return SHARED
    return None


def _extents(function: Any) -> dict[str, int]:
    """The largest constant extent bound to each thread tag, in all kernels of a function."""
    extents: dict[str, int] = {}

    def look(loop: tirx.For) -> None:
        if loop.thread_binding is not None and isinstance(loop.extent, tirx.IntImm):
            tag = str(loop.thread_binding.thread_tag)
            extents[tag] = max(extents.get(tag, 1), int(loop.extent))

    if isinstance(function, tirx.PrimFunc):
        tvm_ffi.structural_walk(function.body, [(tirx.For, look)])
    return extents
