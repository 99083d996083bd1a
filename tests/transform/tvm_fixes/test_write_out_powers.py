from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.programs.emitted import cuda_text, nvcc_says
from tests.programs.mapped import computed
from tvm_layout_ext.simulate import simulate


def powers(exponent: float, dtype: str = "float32") -> Any:
    """Powers by a constant."""
    sch = computed((4, 512), lambda a, i, j: tirx.pow(a[i, j], tirx.const(exponent, dtype)), dtype)
    sch.auto_coalesce("B")
    return sch


def of_magnitude(dtype: str = "float32") -> np.ndarray:
    """Numbers of both signs, none near zero."""
    rng = np.random.default_rng(0)
    return (rng.uniform(0.5, 2, (4, 512)) * rng.choice([-1, 1], (4, 512))).astype(dtype)


def calls(exponent: float) -> tuple[bool, bool]:
    """Whether CUDA calls ``powf``, and ``fabsf``."""
    kernel = cuda_text(powers(exponent)).partition("__global__")[2]
    return "powf(" in kernel, "fabsf(" in kernel


@pytest.mark.parametrize("exponent", [1, 2, 3, 4, 5, 6, -1, -2, -3, -6, -7])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_powers_of_negative_numbers_are_numbers(exponent: int, dtype: str) -> None:
    a = of_magnitude(dtype)
    (got,) = simulate(powers(exponent, dtype), a, None).outputs.values()
    bound = 1e-5 if dtype == "float32" else 1e-3
    np.testing.assert_allclose(got, a.astype("float64") ** exponent, bound)


@pytest.mark.parametrize("exponent", [2, 3, 5, 6, -7])
def test_cuda_takes_powers_of_sizes_alone(exponent: int) -> None:
    by_powf, of_sizes = calls(exponent)
    assert by_powf == of_sizes == (abs(exponent) > 4)


def test_fractions_are_left_to_cuda() -> None:
    assert calls(1.5) == (True, False)


def test_exponents_that_come_at_run_time_are_left() -> None:
    sch = computed((4, 512), lambda a, i, j: tirx.pow(a[i, j], a[i, 511 - j]), "float32")
    sch.auto_coalesce("B")
    kernel = cuda_text(sch).partition("__global__")[2]
    assert "powf(" in kernel
    assert "fabsf(" not in kernel


@pytest.mark.nvcc
@pytest.mark.parametrize("exponent", [3, 7])
def test_cuda_of_vectors_of_halves_compiles(exponent: int, tmp_path: Path) -> None:
    assert not nvcc_says(cuda_text(powers(exponent, "float16")), tmp_path, "-w", "-cubin")
