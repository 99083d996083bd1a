"""The queue of trials: slots that come late, go, or let a trial be tried again."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from queue import Queue

import pytest

from tests.tune.artifacts import doubling_task
from tvm_layout_ext.tune.measure.protocol import Job, Measured, Timing
from tvm_layout_ext.tune.measure.trial_queue import Trial, TrialQueue, TryAgainError
from tvm_layout_ext.tune.measure.worker_slots import PooledRunner, WorkerSlot


@pytest.fixture
def jobs(tmp_path: Path) -> list[Job]:
    return [Job(str(tmp_path / str(index)), "", "cpu", Timing()) for index in range(6)]


def name(one: Trial) -> str:
    return Path(one.job.artifact).name


def test_slot_that_is_not_ready_holds_no_trial(jobs: list[Job]) -> None:
    over = threading.Event()

    def ready(slot: str, _job: Job) -> None:
        # Waits for a server that does not come before the trials have ended.
        if slot == "slow":
            over.wait(10)

    def trial(slot: str, one: Trial) -> Measured:
        return Measured([1.0], server=slot)

    futures = TrialQueue(["slow", "quick"], trial, ready).submit(jobs)
    assert [future.result(10).server for future in futures] == ["quick"] * 6
    over.set()


def test_slot_that_is_ready_when_the_trials_are_gone_is_released(jobs: list[Job]) -> None:
    released: Queue[str] = Queue()
    over = threading.Event()

    def ready(slot: str, _job: Job) -> None:
        if slot == "slow":
            over.wait(10)

    def trial(slot: str, one: Trial) -> Measured:
        return Measured([1.0], server=slot)

    queue = TrialQueue(["slow", "quick"], trial, ready, released.put)
    assert {future.result(10).server for future in queue.submit(jobs)} == {"quick"}
    over.set()
    assert released.get(timeout=10) == "slow"


def test_slot_is_released_after_each_trial() -> None:
    released: list[WorkerSlot] = []

    class Slot(WorkerSlot):
        def run(self, job: Job, timeout: float) -> Measured:
            return Measured([1.0])

        def release(self) -> None:
            released.append(self)

    runner = PooledRunner(doubling_task(), 5.0, None)
    runner._use([Slot()])
    runner.in_turn(["a", "b"])
    assert len(released) == 2


def test_trial_that_is_tried_again_goes_first_and_to_any_slot(jobs: list[Job]) -> None:
    order: list[str] = []

    def trial(slot: str, one: Trial) -> Measured:
        order.append(name(one))
        if name(one) == "1" and not one.lost:
            raise TryAgainError
        if name(one) == "3":
            raise ValueError("wrong")
        return Measured([1.0], phases={"run": 0.5})

    results = [future.result(10) for future in TrialQueue(["only"], trial).submit(jobs)]
    assert order == ["0", "1", "1", "2", "3", "4", "5"]
    assert [one.error for one in results if one.error] == ["ValueError: wrong"]
    assert set(results[0].phases) == {"wait", "run"}


def test_slots_leave_and_the_last_one_fails_what_is_left(jobs: list[Job]) -> None:
    done: list[str] = []

    def ready(slot: str, _job: Job) -> None:
        if slot == "gone" or len(done) == 4:
            raise ConnectionError(f"{slot} has no server")

    def trial(slot: str, one: Trial) -> Measured:
        done.append(name(one))
        return Measured([1.0], server=slot)

    results = [
        future.result(10) for future in TrialQueue(["gone", "left"], trial, ready).submit(jobs)
    ]
    assert [one.server for one in results] == ["left"] * 4 + [None] * 2
    assert {one.error for one in results[4:]} == {"ConnectionError: left has no server"}


def test_trials_are_taken_as_they_are_built_and_what_is_not_fails(
    jobs: list[Job],
) -> None:
    order: list[str] = []
    builds: list[Future[str | None]] = [Future() for _ in jobs]
    took = threading.Semaphore(0)

    def trial(slot: str, one: Trial) -> Measured:
        order.append(name(one))
        took.release()
        return Measured([1.0])

    futures = TrialQueue(["only"], trial).submit(jobs, builds)
    for index in (4, 0):
        # Others are not built yet.
        builds[index].set_result(None)
        assert took.acquire(timeout=10)
    builds[1].set_result("PtxasError: It has no opcode: bogus.")
    for index in (2, 3, 5):
        builds[index].set_result(None)
    results = [future.result(10) for future in futures]
    assert order == ["4", "0", "2", "3", "5"]
    assert [one.error for one in results] == [
        None, "PtxasError: It has no opcode: bogus.", None, None, None, None
    ]  # fmt: skip


def test_what_is_built_after_the_last_slot_has_left_fails_by_its_error(
    jobs: list[Job],
) -> None:
    builds: list[Future[str | None]] = [Future() for _ in jobs]

    def ready(slot: str, _job: Job) -> None:
        raise ValueError("gone")

    queue = TrialQueue(["a", "b"], lambda slot, one: Measured([1.0]), ready)
    futures = queue.submit(jobs, builds)
    for build in builds:
        build.set_result(None)
    assert {future.result(10).error for future in futures} == {"ValueError: gone"}


def test_trials_of_the_batch_before_go_first(jobs: list[Job]) -> None:
    """A search waits for the older of two batches before it proposes the next."""
    taken: list[str] = []
    started, go_on = threading.Event(), threading.Event()

    def trial(_slot: str, one: Trial) -> Measured:
        taken.append(name(one))
        started.set()
        go_on.wait(10)
        return Measured([1.0])

    late = Future[str | None]()
    queue = TrialQueue(["only"], trial)
    first = queue.submit(jobs[:3], [done(), done(), late])
    assert started.wait(10)
    second = queue.submit(jobs[3:])
    late.set_result(None)
    go_on.set()
    for future in (*first, *second):
        future.result(10)
    assert taken == ["0", "1", "2", "3", "4", "5"]


def done() -> Future[str | None]:
    """A build that worked."""
    future = Future[str | None]()
    future.set_result(None)
    return future


def test_next_batch_runs_while_the_one_before_is_built_and_slots_come_back(
    jobs: list[Job],
) -> None:
    unbuilt, lost = Future[str | None](), [True]

    def ready(_slot: str, _job: Job) -> None:
        if lost:
            raise ConnectionError(f"lost {lost.pop()}")

    queue = TrialQueue(["only"], lambda slot, one: Measured([1.0]), ready)
    assert queue.submit(jobs[:1])[0].result(10).error == "ConnectionError: lost True"
    (late,) = queue.submit(jobs[1:2], [unbuilt])
    for future in queue.submit(jobs[2:]):
        assert future.result(10).times == [1.0]
    assert not late.done()
    unbuilt.set_result(None)
    assert late.result(10).times == [1.0]
