"""Scheduling: TVM's classic TE-style face, and primitives for TensorIR schedules."""

from __future__ import annotations

from .assume_divisible import assume_divisible
from .double_buffer import double_buffer, versions_for_triton_stages
from .face import Schedule, create_schedule
from .install import install, uninstall
from .stage import Stage

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
