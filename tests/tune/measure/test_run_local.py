"""The local runner with candidates that crash, hang or are wrong; none ends the run."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tune.artifacts import Shelf, doubling_task
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.tune.measure import worker, worker_slots
from tvm_layout_ext.tune.measure.backend import ReportedError
from tvm_layout_ext.tune.measure.builder.builder import CubinBuilder
from tvm_layout_ext.tune.measure.protocol import Measured, Timing
from tvm_layout_ext.tune.measure.run_local import DeviceSlot, LocalRunner
from tvm_layout_ext.tune.measure.worker import TrialCrashError, TrialTimeoutError, Worker, start
from tvm_layout_ext.tune.space.task import make_task

QUICK = Timing(repeat_ms=0.5, repeats=3, most_repeats=6)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("artifacts"))


@pytest.fixture(scope="module")
def runner() -> Iterator[LocalRunner]:
    made = LocalRunner(doubling_task(), timeout=8, timing=QUICK)
    made.kind = "cpu"
    yield made
    made.close()


def run(runner: LocalRunner, shelf: Shelf, *names: str) -> list[Measured]:
    return [future.result() for future in runner.begin(shelf.artifacts(*names))]


def slot_process(runner: LocalRunner) -> int | None:
    """The worker's process, if it has one."""
    (slot,) = runner._slots
    assert isinstance(slot, DeviceSlot)
    return slot.worker.pid


def test_whatever_a_candidate_does_the_others_are_measured(
    runner: LocalRunner, shelf: Shelf
) -> None:
    names = ["right", "abort", "right", "hang", "nan", "right"]
    measured = run(runner, shelf, *names)
    assert [one.verified for one in measured] == [True, None, True, None, False, True]
    right = [one for name, one in zip(names, measured, strict=True) if name == "right"]
    assert all(3 <= len(one.times) <= 6 and min(one.times) > 0 for one in right)
    assert {(one.l2, one.early_stop) for one in right} == {("warm", False)}
    abort, hang, nan = (measured[names.index(name)] for name in ("abort", "hang", "nan"))
    assert abort.error == "TrialCrashError: Its process ended: Fatal Python error: Aborted."
    assert hang.error == "TrialTimeoutError: It was ended after 8 seconds."
    assert (nan.error or "").startswith("WrongResultError: 1 of 1,024 elements differ")
    assert "at [5] the kernel has nan" in (nan.error or "")


def test_process_is_kept_after_success_and_replaced_after_failure(
    runner: LocalRunner, shelf: Shelf
) -> None:
    run(runner, shelf, "right")
    first = slot_process(runner)
    run(runner, shelf, "right")
    assert slot_process(runner) == first is not None
    (sticky,) = run(runner, shelf, "error")
    assert sticky.error == "DeviceError: CUDA: an illegal memory access was encountered"
    assert slot_process(runner) not in (None, first)
    # Unpoisoned, the output of the trial before would pass for this one's.
    right, unwritten = run(runner, shelf, "right", "unwritten")
    assert right.verified
    assert "24 of 1,024 elements differ" in (unwritten.error or "")


def test_wrong_result_in_a_used_process_is_tried_again_in_a_fresh_one(
    runner: LocalRunner, shelf: Shelf
) -> None:
    # The one before writes into the input, and is itself right.
    stray, right = run(runner, shelf, "stray", "right")
    assert stray.verified
    assert right.verified


def test_process_is_replaced_after_many_trials(
    runner: LocalRunner, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(runner, shelf, "right")
    first = slot_process(runner)
    monkeypatch.setattr(worker_slots, "USES", 2)
    assert run(runner, shelf, "right")[0].verified
    assert slot_process(runner) != first


def test_finalists_take_turns_and_the_winner_meets_fresh_inputs(
    runner: LocalRunner, shelf: Shelf
) -> None:
    runner.best_so_far = 1e-9
    (stopped,) = run(runner, shelf, "slow")
    assert stopped.early_stop
    assert len(stopped.times) == 1
    slow, fast = shelf.artifact("slow"), shelf.artifact("right")
    turns = runner.in_turn([slow, fast] * 2)
    assert min(turns[0].times + turns[2].times) > max(turns[1].times + turns[3].times)
    runner.best_so_far = None
    assert runner.verify(fast).verified
    wrong = runner.verify(shelf.artifact("one wrong"))
    assert (wrong.error or "").startswith("WrongResultError: 1 of 1,024")


def test_ctrl_c_is_left_to_the_tuner(runner: LocalRunner, shelf: Shelf) -> None:
    run(runner, shelf, "right")
    (future,) = runner.begin(shelf.artifacts("sleepy"))
    time.sleep(0.1)
    os.kill(slot_process(runner) or 0, signal.SIGINT)
    assert future.result().error is None


def test_another_task_goes_on_in_the_same_process_with_its_own_inputs(
    runner: LocalRunner, shelf: Shelf
) -> None:
    run(runner, shelf, "right")
    first = slot_process(runner)
    operator = dataclasses.replace(doubling_task().operator, reference=lambda a: 3 * a)
    runner.take(dataclasses.replace(doubling_task(), operator=operator, seed=1))
    (tripled,) = run(runner, shelf, "wrong")
    assert tripled.verified
    assert slot_process(runner) == first is not None
    runner.take(doubling_task())


def test_artifact_that_is_gone_is_a_failed_trial(runner: LocalRunner, shelf: Shelf) -> None:
    path = Path(shelf.artifact("right")) / "kernel.so"
    kept = path.read_bytes()
    path.unlink()
    (measured,) = run(runner, shelf, "right")
    path.write_bytes(kept)
    assert (measured.error or "").startswith("ValueError: cannot find file ")


def test_process_hands_on_errors_and_is_killed_when_it_does_not_let_go(tmp_path: Path) -> None:
    worker = Worker(tmp_path / "log")
    assert worker.call(os.getpid) == worker.pid != os.getpid()
    with pytest.raises(ReportedError, match=r"^ScheduleError: Not so\.$"):
        worker.call(_refuse)
    with pytest.raises(TrialTimeoutError, match="It was ended after 1 seconds"):
        # Called so, sleep keeps Python's lock.
        worker.call(_sleep_with_the_lock, 60, timeout=1)
    worker.close()
    with pytest.raises(TrialCrashError, match="was closed"):
        worker.call(os.getpid)


def test_process_that_cannot_start_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "start", start)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TrialCrashError, match=r"did not start: it said nothing\.$"):
        Worker(tmp_path / "log").call(os.getpid)


def _refuse() -> None:
    raise ScheduleError("Not so.")


def _sleep_with_the_lock(seconds: int) -> None:
    ctypes.PyDLL(None).sleep(seconds)
    time.sleep(seconds)


@pytest.mark.gpu
def test_several_candidates_on_a_gpu() -> None:
    task = make_task("transpose", (2048, 1024), "float32")
    builder, runner = CubinBuilder(task.architecture.name, workers=4), LocalRunner(task)
    building = builder.begin([task.module(config) for config in task.space.legal[:4]])
    folders = [one.folder for one in building]
    for future in runner.begin(folders, after=[one.error for one in building]):
        measured = future.result()
        assert measured.error is None
        assert measured.verified
        assert measured.l2 == "rotated"
        assert 0 < min(measured.times) < 1e-3
    assert all(one.times for one in runner.in_turn(folders[:2] * 2))
    assert runner.verify(folders[0]).verified
    runner.close()
    builder.close()
