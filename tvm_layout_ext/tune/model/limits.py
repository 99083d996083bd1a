"""What no GPU of the task can launch, of what a user's own schedule makes of its knobs."""

from __future__ import annotations

import tvm
from tvm import tirx

from ... import decisions
from ...build import check_fits, lower
from ...errors import LayoutExtError, TargetError
from ...gpu.hardware import STATIC_SHARED_BYTES, Architecture, launch_problem
from ...ir.pointers import constant
from ...ir.queries import is_number, nodes_in
from ...ir.vector_types import lacking, lanes_of_type
from ...target import cuda_target
from ..space.knobs import Refusal
from .features import kernels_of

#: Rules, as reports count them.
LAUNCH, SHARED, VECTORS = "threads and blocks", "shared memory", "vector types"
SCHEDULE, LOWERING = "refused by the schedule", "refused by lowering"


def over_limits(module: tvm.IRModule, architecture: Architecture) -> Refusal | None:
    """Say which limit of the GPU a scheduled module breaks, or None if it seems to break none.

    Thread extents, tiles and vectors are read off the schedule in some ten milliseconds, which may
    count too much: buffers that are not in use together share their place. Only what these put
    under suspicion is lowered, and then judged as ``tlx.build`` would.
    """
    target, rule = cuda_target(architecture.name), None
    with decisions.collect():
        try:
            rule = _suspicion(module, architecture)
            if rule is not None:
                lowered = lower(module, target=target)
                check_fits(lowered, target)
                functions = [one for _, one in lowered.functions_items()]
                texts = [lacking(one, architecture.capability) for one in functions]
                return next((Refusal(VECTORS, text) for text in texts if text), None)
        except TargetError as error:
            return Refusal(rule or LOWERING, str(error))
        except LayoutExtError as error:
            return Refusal(VECTORS if rule == VECTORS else LOWERING, str(error))
    return None


def _has_odd_vectors(module: tvm.IRModule, architecture: Architecture) -> bool:
    """Whether a vectorized loop has a length that some type in it has no vectors of."""
    functions = [func for _, func in module.functions_items() if isinstance(func, tirx.PrimFunc)]
    for loop in (loop for func in functions for loop in nodes_in(func.body, tirx.For)):
        if loop.kind != tirx.ForKind.VECTORIZED or is_number(loop.extent, 1):
            continue
        for one in nodes_in(loop.body, tvm.ir.TensorLoad, tirx.BufferStore, tirx.Cast):
            kind = one.value.ty if isinstance(one, tirx.BufferStore) else one.ty
            lanes = lanes_of_type(str(kind), architecture.capability)
            if lanes is not None and constant(loop.extent) not in (None, *lanes):
                return True
    return False


def _suspicion(module: tvm.IRModule, architecture: Architecture) -> str | None:
    for kernel in kernels_of(module):
        if launch_problem(kernel.extents, architecture.threads_per_block):
            return LAUNCH
        shared = [
            (sites[0].scope, kernel.tiles[key].bytes)
            for key, sites in kernel.by_buffer.items()
            if sites[0].scope.startswith("shared")
        ]
        static = sum(size for scope, size in shared if scope == "shared")
        every = sum(size for _, size in shared)
        if static > STATIC_SHARED_BYTES or every > architecture.shared_per_block:
            return SHARED
    return VECTORS if _has_odd_vectors(module, architecture) else None
