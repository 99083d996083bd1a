from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from importlib import metadata

import pytest

from tests.programs.mapped import computed
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
        "import sys, tvm_layout_ext;"
        "slow = {'tvm.s_tir.tensor_intrin', 'tvm.s_tir.meta_schedule', 'xgboost', 'rich.console',"
        " 'matplotlib', 'typer'};"
        "found = slow & set(sys.modules);"
        "import tvm; assert not found - {'tvm.s_tir.meta_schedule'}, found"
    )
    subprocess.run([sys.executable, "-c", probe], check=True)


def test_quick_type_checks_refuse_what_tvm_refuses() -> None:
    sch = computed((4,), lambda a, i: a[i])
    (loop,) = sch.get_loops(sch.get_sblock("B"))
    said = []
    for context in (nullcontext, _compat.quick_type_checks, nullcontext):
        with context(), pytest.raises(TypeError, match="has wrong type") as refused:
            sch.split(loop, factors="2")
        said.append(str(refused.value))
    assert len(set(said)) == 1
    with _compat.quick_type_checks():
        assert len(sch.split(loop, factors=[None, 2])) == 2
