"""Which matrix products ``mma.sync`` has, and how matrices lie in the registers of warps.

The PTX ISA ("Matrix Fragments for mma.m16n8k4" and the sections after it) draws a figure for each
type; the classes of :mod:`tvm_layout_ext.layout` say the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import NotModelled
from ...gpu import hardware
from ...layout import Layout, NVMMADistributedLayout

#: Rows of A and D, and columns of B and D.
ROWS, COLUMNS = 16, 8
#: Layout of C and D.
SUMS = NVMMADistributedLayout([2, 0], [1, 1], [ROWS, COLUMNS])
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


@cache
def _places(layout: Layout, rows: int, columns: int) -> tuple[Any, Any]:
    """Which element of the matrix each element of each lane is, and the other way round."""
    linear = layout.to_linear([rows, columns]).without_zero_bases("register")
    element, lane = np.indices((linear.in_sizes["register"], hardware.WARP_SIZE))
    at = linear.apply_arrays(register=element, lane=lane, warp=0, block=0)
    held = (at["dim0"] * columns + at["dim1"]).ravel()
    return held, np.argsort(held)


def gather(elements: Any, layout: Layout, rows: int, columns: int) -> Any:
    """Matrices ``[warps, rows, columns]`` of elements ``[elements a lane, threads]``."""
    parts = elements.reshape(len(elements), -1, hardware.WARP_SIZE).swapaxes(0, 1)
    warps = parts.shape[0]
    found = parts.reshape(warps, -1).take(_places(layout, rows, columns)[1], axis=1)
    return found.reshape(warps, rows, columns)


def scatter(matrices: Any, layout: Layout) -> Any:
    """Elements ``[elements a lane, threads]`` of matrices: the inverse of :func:`gather`."""
    warps, *shape = matrices.shape
    held, _ = _places(layout, *shape)
    parts = matrices.reshape(warps, -1).take(held, axis=1).reshape(warps, -1, hardware.WARP_SIZE)
    return parts.swapaxes(0, 1).reshape(-1, warps * hardware.WARP_SIZE)
