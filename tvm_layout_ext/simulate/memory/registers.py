"""Operands of matrix instructions: 32-bit registers that are parts of local arrays, or values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import NotModelled
from ..model.code import Code
from ..model.values import retyped, retyped_poison
from .local import LocalAccess
from .memory import EVERY


@dataclass(frozen=True)
class RegisterExpression:
    """An expression that is one register; it cannot be written."""

    code: Code
    size: int = 4

    def read(self, s: Any, m: Any, dtype: np.dtype[Any], lanes: slice = EVERY) -> tuple[Any, Any]:
        """Elements ``[n, threads]`` of a type, and their poison or None; of some threads alone."""
        value, codes = self.code.pair(s, m)
        whole = np.ascontiguousarray(np.broadcast_to(value, (1, s.batch.size))[:, lanes])
        elements = retyped(whole, dtype)
        if codes is not None:
            every = np.broadcast_to(codes, (1, s.batch.size))
            codes = retyped_poison(every[:, lanes], len(elements))
        return elements, codes

    def write(self, s: Any, m: Any, values: Any, codes: Any, lanes: slice = EVERY) -> None:
        """Refuse: only a local array can be a destination."""
        raise NotModelled("A matrix instruction can write only to elements of local arrays.")


#: Some adjoining 32-bit registers of each thread.
Registers = LocalAccess | RegisterExpression


def read_all(
    parts: list[Registers], s: Any, m: Any, dtype: np.dtype[Any], lanes: slice = EVERY
) -> tuple[Any, Any]:
    """Elements of several runs of registers, one after the other; of some threads alone."""
    if len(parts) == 1:
        return parts[0].read(s, m, dtype, lanes)
    values, poison = zip(*[part.read(s, m, dtype, lanes) for part in parts], strict=True)
    joined = None
    if any(codes is not None for codes in poison):
        joined = np.concatenate(
            [
                np.zeros(value.shape, np.int64) if codes is None else codes
                for value, codes in zip(values, poison, strict=True)
            ]
        )
    return np.concatenate(values), joined


def write_all(
    parts: list[Registers], s: Any, m: Any, values: Any, codes: Any, lanes: slice = EVERY
) -> None:
    """Set elements of several runs of registers, one after the other; of some threads alone."""
    start = 0
    for part in parts:
        end = start + part.size // values.dtype.itemsize
        own = None if codes is None else codes[start:end]
        part.write(s, m, values[start:end], own, lanes)
        start = end
