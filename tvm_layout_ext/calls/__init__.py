"""Kernels as functions of arrays: ready operators, and schedules of one's own."""

from __future__ import annotations

from .operation import Operation, op, operators

__all__ = ["Operation", "op", "operators"]
