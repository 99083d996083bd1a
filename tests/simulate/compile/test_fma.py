"""``fused`` against exact arithmetic of fractions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tvm_layout_ext.simulate.compile.fma import fused

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NARROW = [np.dtype("float32"), np.dtype("float16"), _BFLOAT16]


def exact(*values: Any) -> Fraction:
    a, b, c = (Fraction(float(value)) for value in values)
    return a * b + c


def places_off(found: Any, want: Fraction) -> Fraction:
    """By how many places a number is off; half a place is what rounding takes."""
    dtype = found.dtype
    kind = ml_dtypes.finfo(dtype) if dtype == _BFLOAT16 else np.finfo(dtype)
    size = max(abs(want), Fraction(float(kind.smallest_normal)))
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    return abs(Fraction(float(found)) - want) / Fraction(2) ** (exponent - kind.nmant)


def numbers(bits: int) -> st.SearchStrategy[float]:
    return st.floats(-1e4, 1e4, width=bits)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(numbers(16), numbers(16), numbers(16), st.sampled_from([1.0, 2**-8, 2**-12, 2**-20]))
@example(1 + 2**-7, 1 + 2**-7, -1.0, 1.0)
def test_sums_of_halves_are_rounded_once(
    dtype: Any, a: float, b: float, c: float, scale: float
) -> None:
    values = [np.asarray(value).astype(dtype)[()] for value in (a, b * scale, c)]
    with np.errstate(over="ignore"):
        found, want = fused(dtype)(*values), exact(*values)
    assert not np.isfinite(found) or places_off(found, want) <= Fraction(1, 2)


@given(numbers(32), numbers(32), numbers(32))
@example(1 + 2**-12, 1 + 2**-12, -1 - 2**-11)
@example(1e22, 1e-7, -1e15)
def test_sums_of_float32_are_rounded_once(a: float, b: float, c: float) -> None:
    values = [np.float32(value) for value in (a, b, c)]
    found, want = fused(np.dtype("float32"))(*values), exact(*values)
    assert places_off(found, want) <= Fraction(1, 2) + Fraction(1, 2**28)


@given(st.floats(-1e100, 1e100), st.floats(-1e100, 1e100), st.floats(-1e100, 1e100))
@example(1 + 2**-30, 1 + 2**-30, -1 - 2**-29)
def test_sums_of_float64_are_rounded_as_good_as_once(a: float, b: float, c: float) -> None:
    if a * b and abs(a * b) < 1e-250:
        return
    values = [np.float64(value) for value in (a, b, c)]
    found, want = fused(np.dtype("float64"))(*values), exact(*values)
    assert places_off(found, want) <= Fraction(1, 2) + Fraction(1, 2**40)


@pytest.mark.parametrize("dtype", [*NARROW, np.dtype("float64")], ids=str)
def test_what_is_no_number_stays_so(dtype: Any) -> None:
    inf, nan, one = (np.asarray(value).astype(dtype) for value in ([np.inf], [np.nan], [1]))
    join = fused(dtype)
    with np.errstate(all="ignore"):
        assert join(one, one, inf) == inf
        assert join(inf, -one, one) == -inf
        assert np.isnan(join(inf, one, -inf)).all()
        assert np.isnan(join(one, nan, one)).all()


def test_operands_of_any_shapes_that_broadcast() -> None:
    """Vectors are ``[lanes, threads]``; what is one for all has ones, or no axes."""
    rng, join = np.random.default_rng(0), fused(np.dtype("float32"))
    for shapes in [((3, 1), (1, 3), (3, 3)), ((), (1, 3), (2, 1)), ((), (), (4,)), ((4,), (), ())]:
        given_ = [np.asarray(rng.random(shape), "float32")[()] for shape in shapes]
        wide = [value.astype("float64") for value in given_]
        before = [np.copy(value) for value in given_]
        found = join(*given_)
        np.testing.assert_array_equal(found, (wide[0] * wide[1] + wide[2]).astype("float32"))
        for value, old in zip(given_, before, strict=True):
            np.testing.assert_array_equal(value, old)
