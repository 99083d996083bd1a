"""Tensor intrinsics of NVIDIA's tensor cores: loads and stores of fragments, and products."""

from __future__ import annotations

from inspect import isfunction as _isfunction

from ..gpu.hardware import Architecture as _Architecture
from ..signatures import typed as _typed
from .fragments import operand_at, operand_place, sums_at, sums_place
from .instructions import INSTRUCTIONS, Instruction, choose, instruction
from .registry import (
    capability_of,
    clear_name,
    fragment_index,
    load_name,
    multiply_name,
    names,
    register,
    store_name,
)

__all__ = [
    "INSTRUCTIONS",
    "Instruction",
    "capability_of",
    "choose",
    "clear_name",
    "fragment_index",
    "instruction",
    "load_name",
    "multiply_name",
    "names",
    "operand_at",
    "operand_place",
    "register",
    "store_name",
    "sums_at",
    "sums_place",
]

_KINDS = (bool, int, str, Instruction, _Architecture)
globals().update(
    {
        name: _typed(it, *_KINDS)
        for name, it in vars().copy().items()
        if name in __all__ and _isfunction(it)
    }
)
