"""Refuse vectors of which TVM's CUDA code generation would move other bytes."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ..analysis.vector_types import lacking_arithmetic, miswritten
from ..errors import ScheduleError

__all__ = ["CheckVectors"]


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.CheckVectors")
def _check_vectors(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    target = func.attrs.get("target", None)
    if target is None or str(target.kind.name) != "cuda" or "arch" not in target.attrs:
        return func
    digits = "".join(c for c in str(target.attrs["arch"]) if c.isdigit())
    capability = int(digits[:-1] or 0), int(digits[-1:] or 0)
    if text := miswritten(func, capability) or lacking_arithmetic(func, capability):
        raise ScheduleError(text)
    return func


def CheckVectors() -> Any:
    """Create the pass that names what would become wrong code: vectors of ``bool`` and of FP8.

    TVM 0.27 writes ``B[0:2] = A[0:2]`` of ``bool`` as an assignment of ``ushort2``, which is 4
    bytes, and of 6 elements of FP8 as one of ``uint1``, which is 4; both compile. Vectors of
    ``bool`` with more than 4 elements, and in a buffer on the chip, it refuses, in other words.
    Sums and comparisons of FP8 it writes as if CUDA had operators for them, which does not compile.

    Changes nothing, so it looks at functions without an annotation of this package, too. FP8 on
    GPUs before compute capability 8.9, where TVM moves its bits as ``uint8``, it leaves to what
    follows, and so it does functions for other targets than CUDA.

    Raises
    ------
    ScheduleError
        If a function has such a vector or such arithmetic; the sentence says what is legal.
    """
    return _check_vectors
