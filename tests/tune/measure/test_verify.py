"""Comparison with NumPy: poison, tolerances, and what a wrong result says."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_layout_ext.tune.measure.verify import WrongResultError, poison, require_close
from tvm_layout_ext.tune.space.operator import Tolerance

EXACT = Tolerance()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32"])
def test_poison_is_wrong_everywhere(dtype: str) -> None:
    want = np.zeros((3, 5), dtype)
    with pytest.raises(WrongResultError, match=r"^15 of 15 elements differ"):
        require_close(poison((3, 5), dtype), want, EXACT)


def test_equal_arrays_pass_exactly() -> None:
    array = np.arange(6, dtype="int8").reshape(2, 3)
    require_close(array, array.copy(), EXACT)


def test_worst_element_is_shown() -> None:
    got = np.array([[1.0, 2.0], [3.0, 9.0]])
    want = np.array([[1.0, 2.5], [3.0, 4.0]])
    with pytest.raises(WrongResultError, match=r"^2 of 4 .* at \[1, 1\] .* 9.0 and NumPy 4.0"):
        require_close(got, want, EXACT)


def test_not_a_number_is_worse_than_any_difference() -> None:
    with pytest.raises(WrongResultError, match=r"^2 of 3 .* at \[1\] .* nan"):
        require_close(np.array([5.0, np.nan, 1.0]), np.array([1.0, 1.0, 1.0]), EXACT)


def test_tolerance_is_absolute_plus_relative() -> None:
    want = np.array([100.0])
    require_close(np.array([101.4]), want, Tolerance(rtol=0.01, atol=0.5))
    with pytest.raises(WrongResultError):
        require_close(np.array([101.6]), want, Tolerance(rtol=0.01, atol=0.5))


def test_shape_must_agree() -> None:
    with pytest.raises(WrongResultError, match=r"shape \(2, 3\), NumPy's \(3, 2\)"):
        require_close(np.zeros((2, 3)), np.zeros((3, 2)), EXACT)
