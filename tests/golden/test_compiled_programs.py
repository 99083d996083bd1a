"""Compilers take the CUDA of the golden corpus; none needs a GPU."""

from __future__ import annotations

import pytest

from tests.golden.programs import store
from tests.golden.programs.catalogue import programs, some
from tvm_layout_ext import TargetError
from tvm_layout_ext.cubin import MODE_VARIABLE, machine_code


def compiled(name: str, compiler: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv(MODE_VARIABLE, compiler)
    source = store.read()[name].get("cuda") or pytest.skip("the package refuses it")
    return machine_code(source, programs()[name].arch).image


@pytest.mark.nvcc
@pytest.mark.parametrize("name", some(8, 120))
def test_nvcc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(name, "nvcc", monkeypatch)


@pytest.mark.parametrize("name", some(4, 40))
def test_nvrtc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its package is installed and TVM finds CUDA's headers."""
    try:
        assert compiled(name, "nvrtc", monkeypatch)
    except TargetError as error:
        pytest.skip(str(error))
