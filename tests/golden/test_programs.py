"""The golden corpus is what was committed, and compilers take the CUDA of it."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from tests import sampling
from tests.golden.programs import store
from tests.golden.programs.catalogue import programs
from tests.golden.programs.program import record


def some(number: int) -> list[str]:
    """Names of so many programs, of all in a whole run."""
    names = sorted(programs())
    return names if sampling.whole else random.Random(sampling.SEED).sample(names, number)


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


@pytest.mark.nvcc
@pytest.mark.parametrize("name", some(8))
def test_nvcc_takes_the_code(name: str, tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text(store.read()[name]["cuda"])
    command = ["nvcc", f"-arch={programs()[name].arch}", "-cubin", "-o", "kernel.cubin"]
    ran = subprocess.run(
        [*command, "kernel.cu"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
