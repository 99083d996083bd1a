"""A pool of processes, of whose work the most urgent goes first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .worker import Worker

#: So many start at once: a search begins with 32 rankings and 17 builds. Others start when needed.
AT_ONCE = 48
#: A process that builds grows a little with each build; after so many calls another takes over.
USES = 200


class WorkerPool:
    """Runs functions in processes, one at a time in each."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        # Those that have started are asked first.
        self._workers, self._idle = workers, list(reversed(workers))
        self._threads = ThreadPoolExecutor(len(workers))
        self._lock = threading.Lock()
        self._jobs: list[tuple[bool, int, Future[Any], Callable[[Worker], Any]]] = []
        self._numbers = itertools.count()
        for worker in workers[:AT_ONCE]:
            worker.begin()

    def submit(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float | None = None,
        later: bool = False,
    ) -> Future[Any]:
        """Run a function in a process, one ``later`` after all that are not."""
        future: Future[Any] = Future()

        def job(worker: Worker) -> Any:
            return worker.call(function, *args, timeout=timeout)

        with self._lock:
            heapq.heappush(self._jobs, (later, next(self._numbers), future, job))
        self._threads.submit(self._run)
        return future

    def _run(self) -> None:
        with self._lock:
            _, _, future, job = heapq.heappop(self._jobs)
            worker = self._idle.pop()
        try:
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(job(worker))
            except BaseException as error:
                future.set_exception(error)
            if worker.calls >= USES:
                worker.replace()
        finally:
            with self._lock:
                self._idle.append(worker)

    def close(self) -> None:
        """End the processes, and with them all that is under way."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown()
