"""Whole models: a schedule for every function of a module, without tuning."""

from __future__ import annotations

from .default_schedule import DefaultSchedule
from .dynamo import torch_backend
from .imported.mixed_precision import MixedPrecision
from .imported.narrow_shortcuts import NarrowShortcuts
from .imported.static_cache import with_static_cache
from .imported.torch_module import TorchModule, compile_torch
from .pipeline import lower_relax, relax_pipeline

__all__ = [
    "DefaultSchedule",
    "MixedPrecision",
    "NarrowShortcuts",
    "TorchModule",
    "compile_torch",
    "lower_relax",
    "relax_pipeline",
    "torch_backend",
    "with_static_cache",
]
