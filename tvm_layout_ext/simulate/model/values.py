"""Types and values of the simulated lanes: NumPy arrays, one entry a lane, with poison beside them.

A value of a TIR type with one lane is a NumPy scalar (the same for all threads) or an array
``[threads]``. A vector value is an array ``[lanes or 1, threads or 1]``: the vector axis comes
first so that everything broadcasts. Poison is an int64 array of the same shape, 0 where the value
is defined and else a code that says where the undefined value came from; ``None`` means that all
of it is defined, which is the usual case and costs nothing.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ...errors import NotModelled

_FLOAT8 = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3", "float8_e8m0fnu")
    if hasattr(ml_dtypes, name)
}
_BITS = (8, 16, 32, 64)
_PLAIN = {
    name: np.dtype(name)
    for name in (
        "bool",
        *[f"{sign}int{bits}" for sign in ("", "u") for bits in _BITS],
        *[f"float{bits}" for bits in _BITS[1:]],
    )
}
_TYPES = {**_PLAIN, **_FLOAT8, "bfloat16": np.dtype(ml_dtypes.bfloat16)}


@cache
def split_type(dtype: str) -> tuple[np.dtype[Any], int]:
    """NumPy type and number of vector lanes of a TVM type: ``"float16x4"`` gives (float16, 4)."""
    match = re.fullmatch(r"(\w+?)(?:x(\d+))?", dtype)
    if match is None or match.group(1) not in _TYPES:
        raise NotModelled(f"The simulated GPU has no type {dtype}.")
    return _TYPES[match.group(1)], int(match.group(2) or 1)


#: TVM's types by handle, with what they are here. TVM has each once; they are kept, so that no
#: other gets the handle. To read the name of one takes longer than to compile its expression.
_SEEN: dict[int, tuple[Any, tuple[np.dtype[Any], int]]] = {}


def numpy_type(expr: Any) -> tuple[np.dtype[Any], int]:
    """NumPy type and vector lanes of a TIR expression."""
    ty = expr.ty
    seen = _SEEN.get(ty.__chandle__())
    if seen is None:
        seen = _SEEN[ty.__chandle__()] = ty, split_type(str(ty.dtype))
    return seen[1]


@cache
def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy or ml_dtypes type is a floating-point type."""
    return dtype.kind == "f" or is_float8(dtype) or dtype == _TYPES["bfloat16"]


@cache
def is_float8(dtype: np.dtype[Any]) -> bool:
    """Whether a type is an 8-bit float, which CUDA can only convert."""
    return dtype in _FLOAT8.values()


@cache
def is_narrow(dtype: np.dtype[Any]) -> bool:
    """Whether C promotes an integer type to int before it computes with it."""
    return dtype.kind in "iu" and dtype.itemsize < 4


@cache
def _limits(target: np.dtype[Any], source: np.dtype[Any]) -> tuple[Any, Any]:
    """Ends of an integer type, as the nearest values of a float type inside the range."""
    info = np.iinfo(target)
    low, high = source.type(info.min), source.type(info.max)
    if float(high) > info.max:
        high = np.nextafter(high, source.type(0))
    return low, high


def _float_to_int(value: Any, target: np.dtype[Any]) -> Any:
    """Truncate as ``cvt.rzi`` does: out of range goes to the nearest end, NaN to 0."""
    wide = np.asarray(value)
    if wide.dtype.itemsize < 4:
        wide = wide.astype(np.float32)
    low, high = _limits(target, wide.dtype)
    exact = np.clip(np.trunc(wide), low, high)
    result = np.where(np.isnan(wide), 0, exact).astype(target)
    info = np.iinfo(target)
    return np.where(wide > high, target.type(info.max), result)


def _to_float8(value: Any, target: np.dtype[Any]) -> Any:
    """Round as CUDA's ``__nv_fp8`` types do: what is too large becomes the largest finite value."""
    largest = float(ml_dtypes.finfo(target).max)
    return np.clip(np.asarray(value).astype(np.float32), -largest, largest).astype(target)


def cast(value: Any, target: np.dtype[Any]) -> Any:
    """Convert a value as a C cast in device code does."""
    source = np.asarray(value).dtype if not hasattr(value, "dtype") else value.dtype
    if source == target:
        return value
    if target.kind == "b":
        return value != source.type(0)
    if is_float(source) and target.kind in "iu":
        return _float_to_int(value, target)
    if is_float8(target):
        return _to_float8(value, target)
    return value.astype(target)


def either(p: Any, q: Any) -> Any:
    """Poison of a result that needs two values."""
    if p is None:
        return q
    return p if q is None else np.maximum(p, q)


def to_lanes(value: Any, lanes: int, threads: int) -> Any:
    """Spread a value to its full shape: ``[threads]``, or ``[lanes, threads]`` for a vector."""
    return np.broadcast_to(value, (threads,) if lanes == 1 else (lanes, threads))


def one_or_all(rows: Any, codes: Any) -> tuple[Any, Any]:
    """Values ``[n, threads]`` and their poison as those of a vector, or of one element."""
    if len(rows) > 1:
        return rows, codes
    return rows[0], None if codes is None else codes[0]


def bits_of(values: Any) -> Any:
    """Bits of values, which tell apart what compares as equal, and NaNs as the same."""
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def retyped(values: Any, target: np.dtype[Any]) -> Any:
    """Bits of each thread's elements ``[n, threads]`` as elements of another type."""
    if values.dtype == target:
        return values
    if values.dtype.itemsize == target.itemsize:
        return np.ascontiguousarray(values).view(target)
    return np.ascontiguousarray(values.T).view(target).T


def retyped_poison(codes: Any, rows: int) -> Any:
    """Poison of elements ``[n, threads]`` as that of ``rows`` wider or narrower ones."""
    if codes is None or len(codes) == rows:
        return codes
    if len(codes) > rows:
        return codes.reshape(rows, -1, codes.shape[-1]).max(axis=1)
    return np.repeat(codes, rows // len(codes), axis=0)
