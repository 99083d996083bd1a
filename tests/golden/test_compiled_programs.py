"""Compilers take the CUDA of the golden corpus; none needs a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests.golden.programs import store
from tests.golden.programs.catalogue import programs, some
from tvm_layout_ext import TargetError
from tvm_layout_ext.tune.measure.builder.cubin import MODE_VARIABLE, machine_code

#: Programs whose code compilers refuse, and why.
_REFUSED = {
    "product/f16-sm_75": "use_tensor_core takes an instruction that sm_75 lacks",
    "reduce/rms-float16": "TVM writes a call of 8 floats as one of CUDA's vectors of 4",
}


def compilable(number: int, whole: int) -> list[Any]:
    """Names as of :func:`some`; those that compilers refuse today are expected to fail."""
    marks = {name: pytest.mark.xfail(reason=why) for name, why in _REFUSED.items()}
    return [pytest.param(n, marks=marks[n]) if n in marks else n for n in some(number, whole)]


def compiled(name: str, compiler: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv(MODE_VARIABLE, compiler)
    source = store.read()[name].get("cuda") or pytest.skip("the package refuses it")
    return machine_code(source, programs()[name].arch).image


@pytest.mark.nvcc
@pytest.mark.parametrize("name", compilable(8, 120))
def test_nvcc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(name, "nvcc", monkeypatch)


@pytest.mark.parametrize("name", compilable(4, 40))
def test_nvrtc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its package is installed and TVM finds CUDA's headers."""
    try:
        assert compiled(name, "nvrtc", monkeypatch)
    except TargetError as error:
        pytest.skip(str(error))
