"""The names of the package: short, complete, and none of them hides another."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from types import ModuleType

import pytest

import tvm_layout_ext as tlx
from tvm_layout_ext import errors


@pytest.mark.parametrize("name", [one.name for one in pkgutil.iter_modules(tlx.__path__)])
def test_no_function_hides_a_module(name: str) -> None:
    if name == "__main__":
        return
    module = importlib.import_module(f"tvm_layout_ext.{name}")
    assert getattr(tlx, name) is module


@pytest.mark.parametrize("name", ["build", "tune", "simulate"])
def test_a_module_is_called_as_its_function(name: str) -> None:
    package = getattr(tlx, name)
    assert isinstance(package, ModuleType)
    assert callable(package)
    function = getattr(package, name)
    assert inspect.signature(package) == inspect.signature(function)


def test_names_are_there_in_a_fresh_process() -> None:
    """Whatever else was imported before."""
    code = (
        "import tvm_layout_ext.tune as a, tvm_layout_ext.simulate as b, tvm_layout_ext as tlx;"
        "print(a is tlx.tune, b is tlx.simulate, a.Record.__name__, tlx.simulate.Report.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "Record", "Report"]


def test_dir_is_short_and_complete() -> None:
    names = dir(tlx)
    assert len(names) <= 60
    assert {"op", "operators", "tune", "simulate", "ScheduleError", "DefaultSchedule"} <= {*names}
    assert all(hasattr(tlx, name) for name in names)
    assert {n for n in errors.__all__ if n != "LayoutExtError"} - {*names} == set()


def test_help_is_ours() -> None:
    text = pydoc.plain(pydoc.render_doc(tlx))
    assert "builtins.Exception" not in text
    assert "tvm.ir.transform" not in text
    assert "op(name" in text
    assert text.count("\n") <= 120


def test_the_docstring_tells_of_every_name() -> None:
    """It is what help() prints, of all names."""
    words = set(re.findall(r"\w+", tlx.__doc__ or ""))
    assert {*dir(tlx)} - {*errors.__all__, "__version__"} - words == set()


def test_the_command_line_has_every_name_once_a_command_runs() -> None:
    """It imports the package late; a file that it explains imports it as anyone does."""
    code = (
        "import sys; sys.orig_argv = ['python', 'tvm-layout'];"
        "import tvm_layout_ext as tlx; from tvm_layout_ext import _interrupt;"
        "assert 'tvm' not in sys.modules; _interrupt.load();"
        "print(all(name in vars(tlx) for name in dir(tlx)), callable(tlx.tune))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
