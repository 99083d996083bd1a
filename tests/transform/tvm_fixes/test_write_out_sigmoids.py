from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import tirx

from tests.programs.emitted import cuda_text, nvcc_says
from tests.programs.mapped import computed
from tvm_layout_ext.simulate import simulate


def sigmoids() -> Any:
    """Sigmoids of float16 in vectors of 8, computed in float32."""
    sch = computed(
        (4, 512),
        lambda a, i, j: tirx.sigmoid(a[i, j].astype("float32")).astype("float16"),
        "float16",
    )
    sch.auto_coalesce("B")
    return sch


def test_sigmoids_of_long_vectors_are_quotients() -> None:
    a = np.random.default_rng(0).normal(0, 4, (4, 512)).astype("float16")
    (got,) = simulate(sigmoids(), a, None).outputs.values()
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-a.astype("float64"))), 2**-11, 2**-24)
    assert "make_ulonglong4(0x" not in cuda_text(sigmoids())


@pytest.mark.nvcc
def test_cuda_of_them_compiles(tmp_path: Path) -> None:
    assert not nvcc_says(cuda_text(sigmoids()), tmp_path, "-w", "-cubin")
