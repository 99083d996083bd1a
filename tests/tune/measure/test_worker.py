"""Processes that answer calls, alone and in a pool, where the system or a first call fails."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext.tune.measure import worker as worker_module
from tvm_layout_ext.tune.measure import worker_pool
from tvm_layout_ext.tune.measure.worker import TrialCrashError, TrialTimeoutError, Worker, start
from tvm_layout_ext.tune.measure.worker_pool import WorkerPool


@pytest.fixture(autouse=True)
def _as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "start", start)


def test_a_pool_keeps_a_process_that_cannot_be_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(worker: Worker) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(worker_pool, "USES", 1)
    monkeypatch.setattr(Worker, "replace", full)
    pool = WorkerPool([Worker(tmp_path / "log", "json")])
    found = [pool.submit(os.getpid).result(60) for _ in range(3)]
    assert len(set(found)) == 1
    pool.close()


def test_a_process_that_cannot_be_replaced_now_starts_at_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    worker = Worker(tmp_path / "log", "json")
    first = worker.call(os.getpid)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", full)
        with pytest.raises(TrialTimeoutError):
            worker.call(time.sleep, 60, timeout=0.1)
    assert worker.pid is None
    assert worker.call(os.getpid) != first
    worker.close()


def _fails_once(mark: Path) -> None:
    if not mark.exists():
        mark.touch()
        raise OSError("libcudart.so: no such file.")


def test_a_process_whose_first_call_fails_answers_no_other(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    worker = Worker(tmp_path / "log", "json", (_fails_once, mark))
    said = r"^A process did not start: OSError: libcudart\.so: no such file\.$"
    with pytest.raises(TrialCrashError, match=said):
        worker.call(os.getpid)
    assert worker.pid is None
    assert worker.call(os.getpid) == worker.pid
    mark.unlink()
    assert worker.call(os.getpid) == worker.pid
    worker.close()
