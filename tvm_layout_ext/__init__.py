"""Memory layout for Apache TVM schedules, on the published wheel.

Importing the package registers its passes, its pipeline and its schedule primitives with TVM;
:func:`uninstall` takes them out again.
"""

from __future__ import annotations

from ._compat import check_versions as _check_versions

_check_versions()

from . import decisions, errors, hardware, intrin, layout, pipeline, schedule, target, te, transform  # noqa: E402
from . import schedules as _schedules  # noqa: E402, F401 (registers its operators)
from . import simulate as _simulator  # noqa: E402
from ._version import __version__  # noqa: E402
from .build import build, cuda_source, device_program, lower, shared_buffers  # noqa: E402
from .calls import bench as _bench  # noqa: E402
from .calls import benchmark, op, operators  # noqa: E402
from .errors import (  # noqa: E402
    LayoutError,
    NotModelled,
    RecordError,
    ScheduleError,
    SimulationError,
    TargetError,
)
from .models import DefaultSchedule, relax_pipeline  # noqa: E402
from .report import render as _render  # noqa: E402
from .report.explain import explain  # noqa: E402
from .report.pipeline_chart import explain_pipeline  # noqa: E402
from .schedule import create_schedule, versions_for_triton_stages  # noqa: E402
from .schedule.primitives.assume_divisible import assume_divisible  # noqa: E402
from .simulation import simulate  # noqa: E402
from .target import cuda_target, default_target  # noqa: E402
from .tune import ApplyBest, Result, apply_best, export, knob, tune, tune_module  # noqa: E402

__all__ = [
    "ApplyBest",
    "DefaultSchedule",
    "LayoutError",
    "NotModelled",
    "RecordError",
    "ScheduleError",
    "SimulationError",
    "TargetError",
    "__version__",
    "apply_best",
    "assume_divisible",
    "benchmark",
    "build",
    "create_schedule",
    "cuda_source",
    "cuda_target",
    "decisions",
    "default_target",
    "device_program",
    "errors",
    "explain",
    "explain_pipeline",
    "export",
    "hardware",
    "install",
    "intrin",
    "knob",
    "layout",
    "lower",
    "op",
    "operators",
    "pipeline",
    "relax_pipeline",
    "schedule",
    "shared_buffers",
    "simulate",
    "target",
    "te",
    "transform",
    "tune",
    "tune_module",
    "uninstall",
    "versions_for_triton_stages",
]


# Layouts themselves know nothing of pictures.
layout.Layout.render = _render
# Nor does the tuner know of what is built on it.
Result.explain = explain  # type: ignore[attr-defined]
Result.bench = _bench  # type: ignore[attr-defined]
# ``from tvm_layout_ext.simulate import simulate`` is the older way, and stays for one release.
_simulator.simulate = simulate  # type: ignore[attr-defined]


def install() -> None:
    """Register passes, pipeline and schedule primitives with TVM; done once at import."""
    pipeline.install()
    schedule.install()


def uninstall() -> None:
    """Give TVM its own pipeline, namespaces and schedule methods back."""
    schedule.uninstall()
    pipeline.uninstall()


install()
