"""``answers``: of each function of a module, from the disk, of other processes, or made here."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path

import tvm
from tvm import tirx
from tvm.target import Target

from ...calls import disk
from ...ir.diagnostics import reason
from ...ir.queries import nodes_in
from ...tune.measure.environment import cores
from ...tune.measure.worker import Worker
from ...tune.measure.worker_pool import WorkerPool
from ..rules import RULES
from .answer import Answer, ScheduleRequest

_log = logging.getLogger("tvm_layout_ext")
_PACKAGE = __name__.partition(".")[0]
#: So many processes schedule: the longest function of a model takes as long as eight average ones.
_MOST = 8
#: Cores below which processes, which import TVM, would take from each other what they save.
_LEAST_CORES = 4
#: Operators or modules of a model from which on it has functions enough.
LEAST_SIZE = 32
#: A GPU's memory is for the process that runs the model.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

_pool: ContextVar[WorkerPool | None] = ContextVar("layout_ext_schedulers", default=None)


@contextmanager
def side_by_side(size: int, processes: int | None = None) -> Iterator[None]:
    """While entered, functions are scheduled in other processes, which start at once.

    By default as many as cores, up to eight: none of few cores, or for a model of a ``size`` below
    :data:`LEAST_SIZE`. Where none can start, a warning tells it.
    """
    if processes is None:
        have = cores()
        processes = min(have, _MOST) if have >= _LEAST_CORES and size >= LEAST_SIZE else 0
    if not processes or _pool.get() is not None:
        yield
        return
    with ExitStack() as stack:
        try:
            pool = _begun(processes, stack)
        except (OSError, RuntimeError) as error:
            _log.warning("Functions are scheduled in this process: %s", reason(error))
            pool = None
        token = _pool.set(pool)
        try:
            yield
        finally:
            _pool.reset(token)


def _begun(processes: int, stack: ExitStack) -> WorkerPool:
    """Processes that start, and end with a stack."""
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tvm_layout_ext_schedule_"))
    # A program may have found this package by a path of its own.
    environment = _NO_GPU | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    logs, imports = Path(folder), ScheduleRequest.__module__
    workers = [Worker(logs / f"{at}.log", imports, (), environment) for at in range(processes)]
    for one in workers:
        stack.callback(one.close)
    pool = WorkerPool(workers)
    stack.callback(pool.close)
    return pool


def answers(wanted: Sequence[tuple[tirx.PrimFunc, Target]]) -> Iterator[Answer]:
    """What becomes of each function, in order.

    What this package alone decides is kept on disk: not with instruments of passes, rules of a
    user, or where a function calls others.
    """
    if tvm.transform.PassContext.current().instruments or not _are_ours():
        yield from (Answer.of(*one) for one in wanted)
        return
    requests = [None if _calls_others(one[0]) else ScheduleRequest.of(*one) for one in wanted]
    keys = [None if one is None else _key(one) for one in requests]
    found = [None if key is None else disk.known(key) for key in keys]
    missing = {
        key: one
        for key, one, known in zip(keys, requests, found, strict=True)
        if key is not None and one is not None and known is None
    }
    asked = _asked(missing)
    for one, key, known in zip(wanted, keys, found, strict=True):
        answer = _received(asked[key]) if key in asked else _read(known)
        if answer is None:
            answer = Answer.of(*one)
            if key is not None:
                _keep(key, answer)
        else:
            answer.repeat()
        yield answer


def _are_ours() -> bool:
    """Whether all rules are of this package, whose files a key tells."""
    return all(rule.__module__.partition(".")[0] == _PACKAGE for rule in RULES.values())


def _calls_others(func: tirx.PrimFunc) -> bool:
    return bool(nodes_in(func.body, tvm.ir.GlobalVar))


def _key(request: ScheduleRequest) -> str:
    rules = [(name, rule.__module__, rule.__qualname__) for name, rule in RULES.items()]
    text, options, level = request
    return f"{disk.key_of(text, repr(options), level, rules)}.schedule"


def _asked(missing: Mapping[str, ScheduleRequest]) -> dict[str | None, Future[Answer]]:
    """Answers that are under way by key, those of the longest texts first."""
    pool = _pool.get()
    if pool is None or len(missing) < 2:
        return {}
    longest_first = sorted(missing.items(), key=lambda it: -len(it[1].text))
    try:
        return {key: _arrived(key, pool.submit(one.answered)) for key, one in longest_first}
    except RuntimeError as error:  # No thread is left that could wait for a process.
        _log.warning("Functions are scheduled in this process: %s", reason(error))
        return {}


def _arrived(key: str, data: Future[bytes]) -> Future[Answer]:
    """An answer that is read and kept when it comes: JSON takes a tenth of the time of a rule."""
    answer: Future[Answer] = Future()

    def read(done: Future[bytes]) -> None:
        try:
            made = Answer.from_bytes(done.result())
            disk.keep(key, done.result())
            answer.set_result(made)
        except BaseException as error:
            answer.set_exception(error)

    data.add_done_callback(read)
    return answer


def _received(future: Future[Answer]) -> Answer | None:
    try:
        return future.result()
    except Exception as error:
        _log.warning("A function is scheduled here, as another process fails: %s", reason(error))
        return None


def _read(data: bytes | None) -> Answer | None:
    """An answer, or None of a file that somebody else wrote, or that is not there."""
    try:
        return None if data is None else Answer.from_bytes(data)
    except Exception as error:
        _log.info("A schedule on disk cannot be read: %s", reason(error))
        return None


def _keep(key: str, answer: Answer) -> None:
    try:
        disk.keep(key, answer.to_bytes())
    except Exception as error:
        _log.info("A schedule is not kept on disk: %s", reason(error))
