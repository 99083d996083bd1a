"""Comparison with NumPy: poison, tolerances, and what a wrong result says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_layout_ext.tune.measure.reference.problem import WrongResultError, poison, require_close
from tvm_layout_ext.tune.space.operator import Tolerance

EXACT = Tolerance()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int32"])
def test_poison_is_wrong_everywhere(dtype: str) -> None:
    want = np.zeros((3, 5), dtype)
    with pytest.raises(WrongResultError, match=r"^15 of 15 elements differ"):
        require_close(poison((3, 5), dtype), want, EXACT)


@pytest.mark.parametrize(
    ("got", "want", "message"),
    [
        ([[1.0, 2.0], [3.0, 9.0]], [[1.0, 2.5], [3.0, 4.0]],
         r"^2 of 4 .* at \[1, 1\] .* 9.0 and NumPy 4.0"),
        ([5.0, np.nan, 1.0], [1.0, 1.0, 1.0], r"^2 of 3 .* at \[1\] .* nan"),
        (np.zeros((2, 3)), np.zeros((3, 2)), r"shape \(2, 3\), NumPy's \(3, 2\)"),
    ],
    ids=["the worst is shown", "not-a-number is worse", "another shape"],
)  # fmt: skip
def test_what_differs_is_counted_and_shown(got: Any, want: Any, message: str) -> None:
    require_close(np.array(want), np.array(want), EXACT)
    with pytest.raises(WrongResultError, match=message):
        require_close(np.array(got), np.array(want), EXACT)


def test_tolerance_is_absolute_plus_relative() -> None:
    want = np.array([100.0])
    require_close(np.array([101.4]), want, Tolerance(rtol=0.01, atol=0.5))
    with pytest.raises(WrongResultError):
        require_close(np.array([101.6]), want, Tolerance(rtol=0.01, atol=0.5))
