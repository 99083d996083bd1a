"""Build a sweep's candidates in worker processes; results come as they are ready."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm.support.popen_pool import PopenWorker

from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure.backend import failure_text
from tvm_layout_ext.tune.measure.builder import builder
from tvm_layout_ext.tune.measure.builder.host_objects import HostObjects, compile_objects
from tvm_layout_ext.tune.space.task import Task, make_task

__all__ = ["Built", "Candidate", "Workers"]

#: Seconds that one candidate may take.
TIMEOUT = 90.0
#: A worker grows with each build; after so many a fresh one takes over.
USES = 250


@dataclass(frozen=True)
class Candidate:
    """A configuration of one of the sweeps.

    Attributes
    ----------
    sweep : int
        Number of the sweep.
    operator, shape, dtype
        Its workload.
    index : int
        In the order of the legal space.
    config : dict
    """

    sweep: int
    operator: str
    shape: tuple[int, ...]
    dtype: str
    index: int
    config: dict[str, Any]


@dataclass(frozen=True)
class Built:
    """A candidate with the folder of its library, or with what went wrong."""

    candidate: Candidate
    folder: str | None
    error: str | None
    seconds: float


@lru_cache(maxsize=8)
def _task(operator: str, shape: tuple[int, ...], dtype: str) -> Task:
    return make_task(operator, shape, dtype)


def _build(job: tuple[Candidate, str, HostObjects]) -> tuple[str | None, str | None, float]:
    """Schedule and build in a worker."""
    candidate, parent, objects = job
    start = time.perf_counter()
    task = _task(candidate.operator, candidate.shape, candidate.dtype)
    try:
        module = task.module(candidate.config)
    except Exception as error:
        return None, failure_text(error), 0.0
    target = cuda_target(task.architecture.name)
    folder = tempfile.mkdtemp(dir=parent)
    problem = builder.build_one((module, target, folder, objects))
    return None if problem else folder, problem, time.perf_counter() - start


class Workers:
    """Worker processes that build candidates, each behind a thread of this process.

    Parameters
    ----------
    count : int
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._scratch = tempfile.TemporaryDirectory(prefix="sweep_")
        self.folder = Path(self._scratch.name)
        self._objects = compile_objects(self.folder)
        self._processes = [_Process(self._objects.driver) for _ in range(count)]
        self._idle = list(self._processes)
        self._threads = ThreadPoolExecutor(count)

    def results(self, candidates: Sequence[Candidate], deadline: float) -> Iterator[Built]:
        """Build in the given order; yield in the order in which they are ready.

        Nothing is begun after ``deadline``, in seconds of ``time.monotonic``.
        """
        waiting = iter(candidates)
        running: set[Future[Built]] = set()
        while True:
            while len(running) < 2 * self.count and time.monotonic() < deadline:
                candidate = next(waiting, None)
                if candidate is None:
                    break
                running.add(self._threads.submit(self._one, candidate, deadline))
            if not running:
                return
            ready, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in ready)
            if time.monotonic() >= deadline:
                return

    def _one(self, candidate: Candidate, deadline: float) -> Built:
        process = self._idle.pop()
        try:
            if time.monotonic() >= deadline:
                return Built(candidate, None, "DeadlineError: It was not begun in time.", 0.0)
            folder, error, seconds = process.call((candidate, str(self.folder), self._objects))
            return Built(candidate, folder, error, seconds)
        except TimeoutError:
            text = f"BuildTimeoutError: The build was ended after {TIMEOUT:g} seconds."
            return Built(candidate, None, text, TIMEOUT)
        except ChildProcessError:
            text = "BuildCrashError: The process that built this candidate crashed."
            return Built(candidate, None, text, 0.0)
        except Exception as error:
            return Built(candidate, None, failure_text(error), 0.0)
        finally:
            self._idle.append(process)

    def close(self) -> None:
        """End all processes and remove what they built."""
        for process in self._processes:
            process.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._scratch.cleanup()


class _Process:
    """One worker process, started when first needed."""

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._worker: PopenWorker | None = None
        self._uses = 0

    def call(self, job: tuple[Candidate, str, HostObjects]) -> tuple[str | None, str | None, float]:
        if self._worker is None or self._uses >= USES:
            self.end()
            # Else each worker's linear algebra would start a thread a core.
            os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._worker = PopenWorker(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            # Ctrl-C, which a terminal sends to all processes, is for this one.
            self._worker.send(signal.signal, (signal.SIGINT, signal.SIG_IGN))
            self._worker.recv()
            self._worker.send(builder.start_worker, (self._driver,))
            self._worker.recv()
        self._uses += 1
        try:
            self._worker.send(_build, (job,), timeout=TIMEOUT)
            return self._worker.recv()  # type: ignore[no-any-return]
        except (TimeoutError, ChildProcessError):
            self.end()
            raise

    def end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker, self._uses = None, 0
