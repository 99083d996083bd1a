"""Modules of Relax run by TVM's code for the CPU."""

from __future__ import annotations

from typing import Any

import tvm

from benchmarks.relax_numbers import outputs
from tests.programs.host import CPU


def by_cpu(mod: tvm.IRModule, arrays: list[Any], pipeline: Any = "default") -> list[Any]:
    """What TVM's CPU code gives."""
    return outputs(mod, CPU, pipeline, arrays)
