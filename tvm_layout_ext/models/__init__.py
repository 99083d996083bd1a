"""Whole models: a schedule for every function of a module, without tuning."""

from __future__ import annotations

from .default_schedule import DefaultSchedule
from .for_torch.compile_torch import compile_torch
from .for_torch.dynamo import torch_backend
from .for_torch.load_torch import load_torch
from .for_torch.torch_module import TorchModule
from .imported.mixed_precision import MixedPrecision
from .imported.narrow_shortcuts import NarrowShortcuts
from .imported.static_cache import with_static_cache
from .pipeline import lower_relax, relax_pipeline

__all__ = [
    "DefaultSchedule",
    "MixedPrecision",
    "NarrowShortcuts",
    "TorchModule",
    "compile_torch",
    "load_torch",
    "lower_relax",
    "relax_pipeline",
    "torch_backend",
    "with_static_cache",
]
