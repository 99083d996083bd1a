# ruff: noqa: E402 (versions are checked before TVM is imported)
"""Memory layout for Apache TVM schedules, on the published wheel.

* ``op(name)(*arrays)`` runs a ready operator; ``operators()`` lists them. ``@kernel`` and
  ``@autotune`` make functions of arrays of your own schedules; ``benchmark`` times either.
* ``te`` and ``tvm.s_tir.Schedule`` have the primitives; ``build``, ``lower`` and ``cuda_source``
  compile, ``simulate`` and ``explain`` say what a kernel does, without a GPU.
* ``tune``, ``tune_module`` and ``apply_best`` search and use the best schedules;
  ``relax_pipeline`` and ``DefaultSchedule`` schedule whole models without a search.
* ``layout`` has Triton's layouts, ``errors`` what is raised, ``target`` the GPUs.

Importing the package registers its passes, its pipeline and its schedule primitives with TVM;
:func:`uninstall` takes them out again.
"""

from __future__ import annotations

import inspect as _inspect
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import _interrupt  # noqa: F401 (before all that takes long)
from ._compat import check_versions as _check_versions

_check_versions()

from . import build as _builder
from . import decisions, errors, hardware, intrin, layout, pipeline, schedule, target, te, transform
from . import schedules as _schedules  # noqa: F401 (registers its operators)
from . import simulate as _simulator
from . import tune as _tuner
from ._version import __version__
from .build import build as _build
from .build import cuda_source, device_program, lower, shared_buffers
from .calls import autotune, benchmark, kernel, op, operators
from .calls import bench as _bench
from .errors import *  # noqa: F403 (what users catch)
from .models import DefaultSchedule as DefaultSchedule
from .models import relax_pipeline
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

if _TYPE_CHECKING:
    from .build import build
    from .simulation import simulate
    from .tune import tune

__all__ = [
    "ApplyBest",
    "__version__",
    "apply_best",
    "assert_kernel",
    "assume_divisible",
    "autotune",
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
    "kernel",
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


#: Public, too, but ``help`` would fill pages with what these classes inherit.
_MORE = ("DefaultSchedule", *errors.__all__)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MORE])


def _call(package: _Any, function: _Any) -> None:
    """Let a package be called as its main function, so that neither hides the other."""
    package.__class__ = type(
        "CallablePackage", (_ModuleType,), {"__call__": staticmethod(function)}
    )
    package.__signature__ = _inspect.signature(function)


# Layouts themselves know nothing of pictures.
layout.Layout.render = _render
# Nor does the tuner know of what is built on it.
Result.explain = explain  # type: ignore[attr-defined]
Result.bench = _bench  # type: ignore[attr-defined]
# ``from tvm_layout_ext.simulate import simulate`` is the older way, and stays for one release.
_simulator.simulate = _simulate  # type: ignore[attr-defined]
_call(_builder, _build)
_call(_simulator, _simulate)
_call(_tuner, _tune)


def install() -> None:
    """Register passes, pipeline and schedule primitives with TVM; done once at import."""
    pipeline.install()
    schedule.install()


def uninstall() -> None:
    """Give TVM its own pipeline, namespaces and schedule methods back."""
    schedule.uninstall()
    pipeline.uninstall()


install()
