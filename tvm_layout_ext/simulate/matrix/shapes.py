"""Which matrix products ``mma.sync`` has, and which lane holds which element of them.

The PTX ISA ("Matrix Fragments for mma.m16n8k4" and the sections after it) draws a figure for each
type. All follow one rule. With ``w`` elements to a 32-bit register, ``g = lane // 4`` and
``t = lane % 4``, element ``s`` of register ``r`` is

====  ==========================  ===========================
Part  Row                         Column
====  ==========================  ===========================
A     ``g + 8 * (r % 2)``         ``w*t + s + 4*w * (r // 2)``
B     ``w*t + s + 4*w * r``       ``g``
C, D  ``g + 8 * (i // 2)``        ``2*t + i % 2``
====  ==========================  ===========================

where ``i`` counts the four elements of C, whether they fill four registers or two. So a fragment
is a transposition of axes, and needs no table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import NotModelled
from ...gpu import hardware

#: Rows of A and D, and columns of B and D.
ROWS, COLUMNS = 16, 8
_GROUPS, _QUAD = 8, 4
_REGISTER_BITS = 32

#: PTX type -> NumPy type of an element in a register.
TYPES = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "tf32": np.dtype(np.uint32),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f32": np.dtype(np.float32),
    "s32": np.dtype(np.int32),
}
#: How TVM's ptx_legacy.mma writes PTX types.
_ALIASES = {"fp16": "f16", "fp32": "f32", "int8": "s8", "uint8": "u8", "int32": "s32"}

_INTEGER, _FLOAT8 = ("s8", "u8"), ("e4m3", "e5m2")
#: Types of A and B -> (lengths along K, types of C and D).
_PRODUCTS = {
    ("f16", "f16"): ((8, 16), ("f16", "f32")),
    ("bf16", "bf16"): ((8, 16), ("f32",)),
    ("tf32", "tf32"): ((4, 8), ("f32",)),
    **{(a, b): ((16, 32), ("s32",)) for a in _INTEGER for b in _INTEGER},
    **{(a, b): ((16, 32), ("f16", "f32")) for a in _FLOAT8 for b in _FLOAT8},
}


@dataclass(frozen=True)
class Product:
    """One ``mma.sync.aligned.m16n8k*.row.col``."""

    k: int
    a: str
    b: str
    c: str
    saturate: bool

    @classmethod
    def named(
        cls, shape: str, layouts: tuple[str, str], types: tuple[str, ...], saturate: bool
    ) -> Product:
        """Find the product that the modifiers of an instruction name."""
        d, a, b, c = (_ALIASES.get(t.lstrip("."), t.lstrip(".")) for t in types)
        match = re.fullmatch(r"m16n8k(\d+)", shape)
        lengths, accumulators = _PRODUCTS.get((a, b), ((), ()))
        modelled = match is not None and int(match.group(1)) in lengths and c in accumulators
        if not modelled or c != d or layouts != ("row", "col") or (saturate and c != "s32"):
            finite = ".satfinite" if saturate else ""
            raise NotModelled(
                "The simulated GPU does not model mma.sync.aligned."
                f"{shape}.{'.'.join(layouts)}{finite}.{d}.{a}.{b}.{c}."
            )
        assert match is not None
        return cls(int(match.group(1)), a, b, c, saturate)

    def dtype(self, part: str) -> np.dtype[Any]:
        """NumPy type of an element of part ``a``, ``b`` or ``c``."""
        return TYPES[getattr(self, part)]

    def registers(self, part: str) -> int:
        """32-bit registers that a lane holds of part ``a``, ``b`` or ``c``."""
        elements = {"a": ROWS * self.k, "b": self.k * COLUMNS, "c": ROWS * COLUMNS}[part]
        bits = elements * self.dtype(part).itemsize * 8
        return bits // (hardware.WARP_SIZE * _REGISTER_BITS)


def gather_a(elements: Any, packed: int) -> Any:
    """Matrix A of each warp."""
    parts = elements.reshape(-1, 2, packed, elements.shape[1] // 32, _GROUPS, _QUAD)
    # far half of K, half of the rows, slot, warp, g, t -> warp, rows, columns.
    whole = parts.transpose(3, 1, 4, 0, 5, 2)
    return whole.reshape(whole.shape[0], ROWS, -1)


def gather_b(elements: Any, packed: int) -> Any:
    """Matrix B of each warp, ``[warps, K, 8]``; parameters as of :func:`gather_a`."""
    parts = elements.reshape(-1, packed, elements.shape[1] // 32, _GROUPS, _QUAD)
    whole = parts.transpose(2, 0, 4, 1, 3)
    return whole.reshape(whole.shape[0], -1, COLUMNS)


def gather_c(elements: Any) -> Any:
    """Matrix C of each warp, ``[warps, 16, 8]``, of elements ``[4, threads]``."""
    parts = elements.reshape(2, 2, elements.shape[1] // 32, _GROUPS, _QUAD)
    return parts.transpose(2, 0, 3, 4, 1).reshape(-1, ROWS, COLUMNS)


def scatter_d(matrices: Any) -> Any:
    """Elements ``[4, threads]`` of matrices ``[warps, 16, 8]``: the inverse of `gather_c`."""
    parts = matrices.reshape(-1, 2, _GROUPS, _QUAD, 2)
    return parts.transpose(1, 4, 0, 2, 3).reshape(4, -1)
