from __future__ import annotations

import importlib
import subprocess
import sys
from importlib import metadata

import pytest
import tvm
import tvm_ffi

from tvm_layout_ext import _compat


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("apache-tvm", "0.26.1"),
        ("apache-tvm", "0.28.0"),
        ("apache-tvm", "1.0"),
        ("apache-tvm-ffi", "0.1.15.post2"),
        ("apache-tvm-ffi", "0.1.13"),
    ],
)
def test_an_unsupported_version_gives_the_command_that_mends_it(name: str, version: str) -> None:
    versions = {"apache-tvm": "0.27.0.post1", "apache-tvm-ffi": "0.1.14.post1", name: version}
    with pytest.raises(ImportError) as caught:
        _compat.check_versions(versions.__getitem__)
    text = str(caught.value)
    assert text.count("\n") == 0
    assert f"found {version}" in text
    assert text.endswith(
        "run: pip install 'apache-tvm>=0.27,<0.28' 'apache-tvm-ffi>=0.1.14,<0.1.15'"
    )


@pytest.mark.parametrize("version", ["0.27.0", "0.27.0.post1", "0.27.9"])
def test_supported_versions_pass(version: str) -> None:
    _compat.check_versions({"apache-tvm": version, "apache-tvm-ffi": "0.1.14"}.__getitem__)


def test_a_missing_tvm_is_named() -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    with pytest.raises(ImportError, match="apache-tvm, which is not installed; run: pip install"):
        _compat.check_versions(absent)


def test_the_check_runs_before_tvm_is_imported() -> None:
    probe = (
        "import importlib.metadata as m, sys;"
        "m.version = lambda name: '0.1.15';"
        "sys.modules['tvm'] = None\n"
        "try:\n    import tvm_layout_ext\n"
        "except ImportError as e: print(e)"
    )
    out = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert "but found 0.1.15; run: pip install" in out.stdout


def test_import_leaves_the_slow_modules_alone() -> None:
    probe = (
        "import sys, tvm_layout_ext, tvm_layout_ext.te;"
        "slow = {'tvm.s_tir.tensor_intrin', 'tvm.s_tir.meta_schedule', 'xgboost', 'rich.console',"
        " 'matplotlib', 'typer'};"
        "found = slow & set(sys.modules);"
        "import tvm; assert not found - {'tvm.s_tir.meta_schedule'}, found"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_remembered_callbacks_of_two_and_three_arguments_stay_apart() -> None:
    given = []
    for _ in range(2):
        for callback in (
            lambda one, _mutator: given.append(2) or one,
            lambda one, _mutator, _mode: given.append(3) or one,
            lambda one, _mutator, more=0: given.append(more is not None) or one,
        ):
            tvm_ffi.structural_mutate(tvm.tirx.Var("i", "int32"), [(tvm.tirx.Var, callback)])
    assert given == [2, 3, True] * 2
    with pytest.raises(TypeError, match="must accept"):
        tvm_ffi.structural_mutate(tvm.tirx.Var("i", "int32"), [(tvm.tirx.Var, lambda one: one)])


def test_wrong_callbacks_of_walks_are_refused_as_ever() -> None:
    one = tvm.tirx.Var("i", "int32")
    kinds = (tvm.tirx.Var, tvm.tirx.IntImm)
    found: list[object] = []
    for callbacks in ([(kinds, found.append)], (kinds, found.append), found.append):
        tvm_ffi.structural_walk(one, callbacks)
    assert len(found) == 3
    for wrong in ([tvm.tirx.Var], [(tvm.tirx.Var,)], [(tvm.tirx.Var, 3)], 3):
        with pytest.raises(TypeError, match="callbacks"):
            tvm_ffi.structural_walk(one, wrong)


def test_arrays_are_read_in_order_and_instructions_written_as_tvm_does() -> None:
    assert list(tvm_ffi.convert(["a", 2, None])) == ["a", 2, None]
    engine = importlib.import_module("tvm.backend.cuda.ptx.engine")
    render = importlib.import_module("tvm.backend.cuda.ptx.render")
    table = importlib.import_module("tvm.backend.cuda.ptx.table").TABLE
    entries = [one for one in table.values() if all(slot.optional for slot in one.slots)][:20]
    assert entries
    for entry in (*entries, *entries):
        tokens = [""] * len(entry.slots)
        assert engine.render_variant(entry, tokens) == render.render_variant(entry, tokens)
