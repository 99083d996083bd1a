"""Scheduling: TVM's classic TE-style face, and primitives for TensorIR schedules."""

from __future__ import annotations

from .install import install, uninstall
from .primitives.assume_divisible import assume_divisible
from .primitives.double_buffer import double_buffer, versions_for_triton_stages
from .te.face import Schedule, create_schedule
from .te.stage import Stage

__all__ = [
    "Schedule",
    "Stage",
    "assume_divisible",
    "create_schedule",
    "double_buffer",
    "install",
    "uninstall",
    "versions_for_triton_stages",
]
