"""The golden corpus is what was committed, and compilers take the CUDA of it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests import sampling
from tests.golden.programs import store
from tests.golden.programs.catalogue import programs
from tests.golden.programs.program import record
from tvm_layout_ext import TargetError
from tvm_layout_ext.tune.cubin import MODE_VARIABLE, machine_code

#: Programs whose code compilers refuse, and why.
_REFUSED = {
    "product/f16-sm_75": "use_tensor_core takes an instruction that sm_75 lacks",
    "reduce/rms-float16": "TVM writes a call of 8 floats as one of CUDA's vectors of 4",
}


def some(number: int) -> list[str]:
    """Names of so many programs, of all in a whole run."""
    names = sorted(programs())
    return names if sampling.whole else random.Random(sampling.seed).sample(names, number)


def compilable(number: int) -> list[Any]:
    """Names as of :func:`some`; those that compilers refuse today are expected to fail."""
    marks = {name: pytest.mark.xfail(reason=why) for name, why in _REFUSED.items()}
    return [pytest.param(n, marks=marks[n]) if n in marks else n for n in some(number)]


@pytest.mark.parametrize("name", some(40))
def test_a_program_gives_what_was_committed(name: str) -> None:
    committed, now = store.read()[name], record(programs()[name])
    assert now == committed, store.difference(committed, now)


def test_every_program_is_committed_under_its_name_and_hash() -> None:
    records = store.read()
    assert sorted(records) == sorted(programs())
    assert store.HASHES.read_text() == store.hashes(records)


def test_what_changed_is_named_with_its_lines() -> None:
    before = {"a": {"cuda": "x\ny\n"}, "b": {"cuda": "x\n"}, "c": {"cuda": "x\n"}}
    after = {"a": {"cuda": "x\nz\n"}, "b": {"cuda": "x\n"}, "d": {"cuda": "x\n"}}
    assert store.changed(before, after) == ["a (cuda)", "c (gone)", "d (new)"]
    assert store.difference(before["a"], after["a"]).splitlines()[3:] == [" x", "-y", "+z"]


def compiled(name: str, compiler: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv(MODE_VARIABLE, compiler)
    source = store.read()[name].get("cuda") or pytest.skip("the package refuses it")
    return machine_code(source, programs()[name].arch).image


@pytest.mark.nvcc
@pytest.mark.parametrize("name", compilable(8))
def test_nvcc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(name, "nvcc", monkeypatch)


@pytest.mark.parametrize("name", compilable(4))
def test_nvrtc_takes_the_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its package is installed and TVM finds CUDA's headers."""
    try:
        assert compiled(name, "nvrtc", monkeypatch)
    except TargetError as error:
        pytest.skip(str(error))
