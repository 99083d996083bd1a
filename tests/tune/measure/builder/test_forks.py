"""Build processes that are forked: what they are given, and when another way is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from tests.tune.measure.builder.test_builder import ARCH
from tvm_layout_ext.tune.measure.builder import builder as builder_module
from tvm_layout_ext.tune.measure.builder import forks
from tvm_layout_ext.tune.measure.builder.builder import CubinBuilder
from tvm_layout_ext.tune.measure.builder.forks import ForkRefusedError, ForkServer, fork_server


def facts() -> list[object]:
    """What a process knows of itself."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [os.getppid(), os.getcwd(), os.environ.get("MARK"), gpu, "torch" in sys.modules]


def test_forked_processes_have_the_environment_of_now_and_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A process elsewhere finds no module of the tests.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    server = fork_server()
    monkeypatch.chdir(tmp_path)
    for mark in ("one", "two"):
        monkeypatch.setenv("MARK", mark)
        builder = CubinBuilder(ARCH, workers=1)
        parent, *others = builder.apart(facts).result()
        builder.close()
        assert parent == server._process.pid
        assert others == [str(tmp_path), mark, "", True]


def test_a_process_that_crashes_or_hangs_is_forked_anew() -> None:
    builder = CubinBuilder(ARCH, workers=1)
    first = builder.apart(os.getpid).result()
    with pytest.raises(ChildProcessError):
        builder.apart(os._exit, 3).result()
    second = builder.apart(os.getpid).result()
    with pytest.raises(TimeoutError):
        builder.apart(time.sleep, 60, timeout=0.2).result()
    third = builder.apart(os.getpid).result()
    assert len({first, second, third}) == 3
    builder.close()


def test_where_nothing_can_be_forked_a_process_is_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = ForkServer()
    server.close()
    monkeypatch.setattr(builder_module, "fork_server", lambda: server)
    builder = CubinBuilder(ARCH, workers=1)
    with caplog.at_level("INFO", "tvm_layout_ext"):
        parent, *_, gpu, _torch = builder.apart(facts).result()
    builder.close()
    assert (parent, gpu) == (os.getpid(), "")
    assert "A build process is started, not forked. It cannot be asked: " in caplog.text


def test_the_process_that_forks_refuses_once_cuda_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "uses_cuda", lambda: True)
    found = forks._answer({"environment": {}, "folder": "/"}, None, [], lambda: None)  # type: ignore[arg-type]
    assert found == ["CUDA is in use in the process that would fork"]


@pytest.mark.parametrize(
    ("count", "status", "used"), [(1, 0, True), (0, 0, False), (1, 3, False), (None, 0, False)]
)
def test_cuda_is_in_use_where_its_driver_knows_a_device(
    count: int | None, status: int, used: bool, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    assert compiler
    code = "import ctypes\n"
    if count is not None:
        library = tmp_path / "libcuda.so.1"
        source = f"int cuDeviceGetCount(int* n) {{ *n = {count}; return {status}; }}"
        options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-o", str(library)]
        subprocess.run([compiler, *options, "-"], input=source, text=True, check=True)
        code += f"ctypes.CDLL({str(library)!r})\n"
    code += "from tvm_layout_ext.tune.measure.builder.forks import uses_cuda; print(uses_cuda())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(used)


def test_a_server_that_has_ended_is_a_refusal() -> None:
    server = ForkServer()
    server._process.kill()
    server._process.wait()
    with pytest.raises(ForkRefusedError, match=r"It (refuses: it has ended|cannot be asked: )"):
        server.fork(0, 1)
    server.close()


def test_a_copy_of_this_process_has_a_server_of_its_own() -> None:
    server, made = fork_server(), list[object]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks.os, "getpid", lambda: -1)
        patch.setattr(forks, "ForkServer", lambda: made.append(0) or server)
        patch.setattr(forks.atexit, "register", lambda _: None)
        server.close()
        assert fork_server() is server
    assert made == [0]
    assert server._process.poll() is None
    assert fork_server() is server
    assert made == [0]
