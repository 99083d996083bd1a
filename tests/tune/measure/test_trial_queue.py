"""The queue of trials: slots that come late, go, or let a trial be tried again."""

from __future__ import annotations

import shutil
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from tvm.s_tir.meta_schedule.runner import RunnerInput

from tvm_layout_ext.tune.measure.protocol import Measured
from tvm_layout_ext.tune.measure.trial_queue import BatchOrder, Trial, TryAgainError, share


@pytest.fixture
def inputs(tmp_path: Path) -> list[RunnerInput]:
    folders = [tmp_path / str(index) for index in range(6)]
    for folder in folders:
        folder.mkdir()
    return [RunnerInput(str(folder), "cpu", []) for folder in folders]


def name(one: Trial) -> str:
    return Path(str(one.given.artifact_path)).name


def test_seat_that_is_not_ready_holds_no_trial(inputs: list[RunnerInput]) -> None:
    over = threading.Event()

    def ready(slot: str) -> None:
        # Waits for a server that does not come before the trials have ended.
        if slot == "slow":
            over.wait(10)

    def trial(slot: str, one: Trial) -> Measured:
        return Measured([1.0], server=slot)

    futures = share(["slow", "quick"], inputs, trial, ready)
    assert [future.result(10).server for future in futures] == ["quick"] * 6
    over.set()


def test_trial_that_is_tried_again_goes_first_and_to_any_seat(inputs: list[RunnerInput]) -> None:
    order: list[str] = []

    def trial(slot: str, one: Trial) -> Measured:
        order.append(name(one))
        if name(one) == "1" and not one.lost:
            raise TryAgainError
        if name(one) == "3":
            raise ValueError("wrong")
        return Measured([1.0], phases={"run": 0.5})

    results = [future.result(10) for future in share(["only"], inputs, trial)]
    assert order == ["0", "1", "1", "2", "3", "4", "5"]
    assert [one.error for one in results if one.error] == ["ValueError: wrong"]
    assert set(results[0].phases) == {"wait", "run"}
    assert Measured.read(str(inputs[3].artifact_path)) == results[3]


def test_seats_leave_and_the_last_one_fails_what_is_left(inputs: list[RunnerInput]) -> None:
    done: list[str] = []

    def ready(slot: str) -> None:
        if slot == "gone" or len(done) == 4:
            raise ConnectionError(f"{slot} has no server")

    def trial(slot: str, one: Trial) -> Measured:
        done.append(name(one))
        return Measured([1.0], server=slot)

    results = [future.result(10) for future in share(["gone", "left"], inputs, trial, ready)]
    assert [one.server for one in results] == ["left"] * 4 + [None] * 2
    assert {one.error for one in results[4:]} == {"ConnectionError: left has no server"}


def test_artifact_that_cannot_be_written_to_is_a_failed_trial(inputs: list[RunnerInput]) -> None:
    gone = RunnerInput(str(inputs[0].artifact_path) + "/gone", "cpu", [])
    (future,) = share(["only"], [gone], lambda slot, one: Measured([1.0]))
    assert (future.result(10).error or "").startswith("FileNotFoundError: ")


def test_trials_are_taken_as_they_are_built_and_what_is_not_fails(
    inputs: list[RunnerInput],
) -> None:
    order: list[str] = []
    builds: list[Future[str | None]] = [Future() for _ in inputs]
    took = threading.Semaphore(0)

    def trial(slot: str, one: Trial) -> Measured:
        order.append(name(one))
        took.release()
        return Measured([1.0])

    futures = share(["only"], inputs, trial, after=builds)
    for index in (4, 0):
        # Others are not built yet.
        builds[index].set_result(None)
        assert took.acquire(timeout=10)
    shutil.rmtree(str(inputs[1].artifact_path))
    builds[1].set_result("PtxasError: It has no opcode: bogus.")
    for index in (2, 3, 5):
        builds[index].set_result(None)
    results = [future.result(10) for future in futures]
    assert order == ["4", "0", "2", "3", "5"]
    assert [one.error for one in results] == [
        None, "PtxasError: It has no opcode: bogus.", None, None, None, None
    ]  # fmt: skip


def test_what_is_built_after_the_last_seat_has_left_fails_by_its_error(
    inputs: list[RunnerInput],
) -> None:
    builds: list[Future[str | None]] = [Future() for _ in inputs]

    def ready(slot: str) -> None:
        raise ValueError("gone")

    futures = share(["a", "b"], inputs, lambda slot, one: Measured([1.0]), ready, builds)
    for build in builds:
        build.set_result(None)
    assert {future.result(10).error for future in futures} == {"ValueError: gone"}


def test_trials_of_the_batch_before_go_first(inputs: list[RunnerInput]) -> None:
    """A search waits for the older of two batches before it proposes the next."""
    taken: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def trial(_seat: str, one: Trial) -> Measured:
        taken.append(name(one))
        started.set()
        go_on.wait(10)
        return Measured([1.0])

    order = BatchOrder()
    first = share(["only"], inputs[:4], trial, order=order)
    assert started.wait(10)
    second = share(["only"], inputs[4:], trial, order=order)
    go_on.set()
    for future in (*first, *second):
        future.result(10)
    # The last of them is no longer waiting once it is taken.
    assert taken[:3] == ["0", "1", "2"]


def test_next_batch_runs_while_the_one_before_is_built(inputs: list[RunnerInput]) -> None:
    order, unbuilt = BatchOrder(), Future[str | None]()

    def trial(slot: str, one: Trial) -> Measured:
        return Measured([1.0])

    (late,) = share(["only"], inputs[:1], trial, after=[unbuilt], order=order)
    for future in share(["only"], inputs[1:], trial, order=order):
        assert future.result(10).times == [1.0]
    assert not late.done()
    unbuilt.set_result(None)
    assert late.result(10).times == [1.0]
