"""Kernels as functions of arrays: ready operators, and schedules of one's own."""

from __future__ import annotations

from .decorated import autotune, kernel
from .operation import Operation, op, operators
from .timing import Benchmark, bench, benchmark

__all__ = ["Benchmark", "Operation", "autotune", "bench", "benchmark", "kernel", "op", "operators"]
