# ruff: noqa: E402 (versions are checked before TVM is imported)
"""What ``import tvm_layout_ext`` gives, and what it registers with TVM."""

from __future__ import annotations

import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._compat import check_versions

check_versions()

from . import decisions, errors, hardware, intrin, layout, pipeline, schedule, target, te, transform
from . import schedules as _schedules  # noqa: F401 (registers its operators)
from ._version import __version__
from .build import build as _build
from .build import cuda_source, device_program, lower, shared_buffers
from .calls import autotune, benchmark, kernel, op, operators
from .calls import bench as _bench
from .errors import *  # noqa: F403 (what users catch)
from .models import DefaultSchedule as DefaultSchedule
from .models import MixedPrecision as MixedPrecision
from .models import NarrowShortcuts as NarrowShortcuts
from .models import (
    compile_torch,
    load_torch,
    lower_relax,
    relax_pipeline,
    torch_backend,
    with_static_cache,
)
from .report import notebook
from .report import render as _render
from .report.explain import explain
from .report.lint import assert_kernel
from .report.pipeline_chart import explain_pipeline
from .schedule import create_schedule, versions_for_triton_stages
from .schedule.primitives.assume_divisible import assume_divisible
from .simulation import simulate as _simulate
from .target import cuda_target, default_target
from .tune import ApplyBest, Result, apply_best, export, knob, tune_module
from .tune import tune as _tune

if TYPE_CHECKING:
    from .build import build
    from .simulation import simulate
    from .tune import tune
else:
    from . import build, simulate, tune

__all__ = [
    "ApplyBest",
    "DefaultSchedule",
    "MixedPrecision",
    "NarrowShortcuts",
    "__version__",
    "apply_best",
    "assert_kernel",
    "assume_divisible",
    "autotune",
    "benchmark",
    "build",
    "compile_torch",
    "torch_backend",
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
    "kernel",
    "knob",
    "layout",
    "load_torch",
    "lower",
    "lower_relax",
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
    "with_static_cache",
    *errors.__all__,
]


def _call(package: Any, function: Any) -> None:
    """Let a package be called as its main function, so that neither hides the other."""
    package.__class__ = type("CallablePackage", (ModuleType,), {"__call__": staticmethod(function)})
    package.__signature__ = inspect.signature(function)


# Layouts themselves know nothing of pictures.
layout.Layout.render = _render
# Nor does the tuner know of what is built on it.
Result.explain = explain  # type: ignore[attr-defined]
Result.bench = _bench  # type: ignore[attr-defined]
# ``from tvm_layout_ext.simulate import simulate`` is the older way, and stays for one release.
simulate.simulate = _simulate  # type: ignore[attr-defined]
_call(build, _build)
_call(simulate, _simulate)
_call(tune, _tune)


def install() -> None:
    """Register passes, pipeline and schedule primitives with TVM; done once at import."""
    pipeline.install()
    schedule.install()
    notebook.install()


def uninstall() -> None:
    """Give TVM its own pipeline, namespaces and schedule methods back."""
    schedule.uninstall()
    pipeline.uninstall()


install()
