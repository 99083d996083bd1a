"""What goes wrong before a command begins is one sentence, and ends it with the right code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import invoke

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [["-m", "tvm_layout_ext"], ["bin/tvm-layout"]])
def test_ctrl_c_while_tvm_is_imported_is_no_traceback(command: list[str], tmp_path: Path) -> None:
    """With a TVM that presses Ctrl-C as it is imported."""
    (tmp_path / "tvm.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tvm-layout").write_text("from tvm_layout_ext.cli import main; main()\n")
    done = subprocess.run(
        [sys.executable, *command, "tune", "transpose"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *filter(None, sys.path)])},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("words", "code"), [("--help", 0), ("--version", 0), ("tune --help", 0), ("explian x", 2)]
)
def test_what_needs_no_tvm_does_not_wait_for_it(words: str, code: int) -> None:
    """--version takes 0.1 s of a core; with the import of TVM it took 1.5 s."""
    told = (
        "import sys, atexit; atexit.register(lambda: print(sorted(sys.modules), file=sys.stderr))"
    )
    line = ["tvm-layout", *words.split()]
    run = f"import runpy; sys.orig_argv[1:] = sys.argv = {line}; runpy.run_module('tvm_layout_ext')"
    done = subprocess.run(
        [sys.executable, "-c", f"{told}; {run}"], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    modules = done.stderr.splitlines()[-1]
    assert "'tvm_layout_ext.cli.tune'" in modules
    for name in ("tvm", "tvm_ffi", "numpy", "xgboost", "tvm_layout_ext.tune"):
        assert f"'{name}'" not in modules


def test_importing_the_package_leaves_ctrl_c_alone() -> None:
    code = (
        "import signal; before = signal.getsignal(signal.SIGINT); import tvm_layout_ext; "
        "print(signal.getsignal(signal.SIGINT) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("shape", [["99999999999999999999", "4"], ["4", "2147483648"]])
def test_a_shape_beyond_32_bits_is_one_sentence(shape: list[str], tmp_path: Path) -> None:
    done = invoke("tune", "transpose", "--shape", *shape, "--log", str(tmp_path))
    assert done.code == 2
    assert "A size is at most 2,147,483,647, not " in done.err
    assert "Traceback" not in done.err
