"""The rule for what is left: TVM's own default schedules, in the order of its CUDA pipeline."""

from __future__ import annotations

import logging

from tvm import tirx
from tvm.s_tir import Schedule, dlight
from tvm.target import Target

from ..build import lower
from ..errors import LayoutExtError, ScheduleError
from ..ir.annotations import MARK
from ..ir.diagnostics import reason
from .rule import Scheduled

_log = logging.getLogger("tvm_layout_ext")
_RULES = (
    dlight.gpu.Matmul,
    dlight.gpu.GEMV,
    dlight.gpu.Reduction,
    dlight.gpu.GeneralReduction,
    dlight.gpu.Fallback,
)


def by_dlight(func: tirx.PrimFunc, target: Target) -> Scheduled:
    """Take the schedule of the first of dlight's rules that has one which can be lowered."""
    failed = []
    for rule in _RULES:
        try:
            found = rule().apply(func, target, False)
        except (
            Exception
        ) as error:  # GEMV asserts on products of one row; others raise what TVM does.
            failed.append(f"{rule.__name__} fails with {type(error).__name__}")
            continue
        if not isinstance(found, Schedule):
            continue
        scheduled = Scheduled(found, f"dlight's {rule.__name__}")
        try:
            # Vectors of truth values, for one, TVM writes in CUDA as other bytes, and a tile of a
            # symbolic size not at all; functions of a model have the mark when they are built.
            marked = scheduled.function.with_attr(MARK, 1)
            lower(marked.with_attr("global_symbol", "main"), target=target)
        except LayoutExtError as error:
            failed.append(f"{rule.__name__}'s cannot be lowered: {reason(error)}")
            continue
        except Exception as error:  # A mistake in a pass, which the build says, too.
            _log.info("%s's schedule was not lowered: %s", rule.__name__, reason(error))
        return scheduled
    raise ScheduleError(
        f"None of dlight's rules takes it{'; ' if failed else ''}{'; '.join(failed)}."
    )
