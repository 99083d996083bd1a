"""Comparison of a kernel's output with NumPy's."""

from __future__ import annotations

import numpy as np

from ..errors import LayoutExtError
from .operator import Tolerance

__all__ = ["WrongResultError", "poison", "require_close"]


class WrongResultError(LayoutExtError):
    """A kernel's output is not what NumPy computes."""


def poison(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Array of what no kernel leaves behind by chance: not-a-number, or bytes of 0x5A."""
    array = np.empty(shape, dtype)
    if array.dtype.kind == "f":
        array.fill(np.nan)
    else:
        array.view(np.uint8).fill(0x5A)
    return array


def require_close(got: np.ndarray, want: np.ndarray, tolerance: Tolerance) -> None:
    """Raise WrongResultError unless ``|got - want| <= atol + rtol * |want|`` everywhere.

    The sentence counts the wrong elements and shows the worst; not-a-number is always wrong where
    the reference has a number.
    """
    if got.shape != want.shape:
        raise WrongResultError(f"The output has shape {got.shape}, NumPy's {want.shape}.")
    if np.array_equal(got, want):
        return
    wide = want.astype(np.float64)
    error = np.abs(got.astype(np.float64) - wide)
    excess = np.nan_to_num(error - tolerance.atol - tolerance.rtol * np.abs(wide), nan=np.inf)
    count = int(np.count_nonzero(excess > 0))
    if count:
        worst = np.unravel_index(int(np.argmax(excess)), got.shape)
        place = ", ".join(str(int(index)) for index in worst)
        raise WrongResultError(
            f"{count:,} of {got.size:,} elements differ from NumPy's; at [{place}] the kernel has "
            f"{got[worst]} and NumPy {want[worst]}."
        )
