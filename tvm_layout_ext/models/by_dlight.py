"""The rule for what is left: TVM's own default schedules, in the order of its CUDA pipeline."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import Schedule, dlight
from tvm.target import Target

from ..errors import ScheduleError
from .rule import Scheduled

_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


def by_dlight(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Take the schedule of the first of dlight's rules that has one."""
    failed = []
    for rule in _RULES:
        try:
            found = rule().apply(func, target, False)
        except (
            Exception
        ) as error:  # GEMV asserts on products of one row; others raise what TVM does.
            failed.append(f"{rule.__name__} fails with {type(error).__name__}")
            continue
        if isinstance(found, Schedule):
            return Scheduled(found, f"dlight's {rule.__name__}")
    raise ScheduleError(
        f"None of dlight's rules takes it{'; ' if failed else ''}{'; '.join(failed)}."
    )
