from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed
from tvm_layout_ext.simulate import simulate

FUNCTIONS = {"sin": (tirx.sin, np.sin), "cos": (tirx.cos, np.cos)}


def angles(name: str, dtype: str = "float32") -> Any:
    """Sines or cosines of a matrix."""
    sch = computed((4, 512), lambda a, i, j: FUNCTIONS[name][0](a[i, j]), dtype)
    sch.auto_coalesce("B")
    return sch


def taken_of(name: str, dtype: str = "float32") -> str:
    """What CUDA takes the first sine or cosine of."""
    kernel = cuda_text(angles(name, dtype)).partition("__global__")[2]
    (found, *_) = re.findall(rf"{name}f?\((.*)\);", kernel)
    return str(found)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_cuda_takes_angles_of_less_than_a_turn(name: str) -> None:
    assert taken_of(name).count("nearbyintf") == 2


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("most", [3, 1000, 131072])
def test_no_bit_of_a_large_angle_is_lost(name: str, most: float) -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(-most, most, (4, 512)).astype("float32")
    (got,) = simulate(angles(name), a, None).outputs.values()
    np.testing.assert_allclose(got, FUNCTIONS[name][1](a.astype("float64")), atol=1e-6)


def test_what_is_no_number_stays_none() -> None:
    a = np.zeros((4, 512), "float32")
    a[0, :3] = np.inf, -np.inf, np.nan
    (got,) = simulate(angles("cos"), a, None).outputs.values()
    assert np.isnan(got[0, :3]).all()
    assert (got[0, 3:] == 1).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_types_are_left(name: str) -> None:
    assert "nearbyint" not in taken_of(name, "float64")


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sines_of_many_turns_are_right_on_a_gpu(name: str) -> None:
    import tvm

    import tvm_layout_ext as tlx

    rng = np.random.default_rng(0)
    a = rng.uniform(-131072, 131072, (4, 512)).astype("float32")
    device = tvm.cuda(0)
    given, out = tvm.runtime.tensor(a, device), tvm.runtime.empty((4, 512), "float32", device)
    tlx.build(angles(name))(given, out)
    np.testing.assert_allclose(out.numpy(), FUNCTIONS[name][1](a.astype("float64")), atol=2e-6)
