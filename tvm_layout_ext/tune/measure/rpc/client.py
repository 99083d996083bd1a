"""What a client process does for the RPC runner: it holds one session with one server.

It runs in a :class:`.worker.Worker`: a session that breaks may end the process that uses it.
"""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tvm import rpc

from ....errors import TargetError
from ..builder.builder import LIBRARY
from ..protocol import Job
from ..worker import TrialTimeoutError
from ..worker_slots import ServerLostError
from .session import NAMES, PREFIX
from .token import VARIABLE, behind
from .tracker import Tracker

#: Bytes of a problem that travel at once.
_PART = 8 << 20
#: How often in a row a session is tried to be opened.
_OPENINGS = 3


class Gpu(NamedTuple):
    """A session's server, its device, and compute capability, empty for a CPU."""

    server: str
    name: str
    capability: str


class _There:
    session: ClassVar[rpc.RPCSession | None] = None
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}
    gpu: ClassVar[Gpu | None] = None
    problem: ClassVar[str] = ""
    #: Seconds that it took to open the session, or to bring a problem there, for the next trial.
    opening: ClassVar[float] = 0.0

    @classmethod
    def call(cls, name: str, *args: Any) -> Any:
        """Call one of the session's functions; ServerLostError if there is no session now."""
        try:
            return cls.functions[name](*args)
        except Exception as error:
            if cls.alive():
                raise
            raise ServerLostError(str(error).splitlines()[0]) from None

    @classmethod
    def alive(cls) -> bool:
        try:
            cls.functions["holds"]("0" * 32)
        except Exception:
            return False
        return True

    @classmethod
    def close(cls) -> None:
        """Let the session go, if there is one; its server ends it then."""
        cls.session, cls.functions, cls.gpu, cls.problem = None, {}, None, ""
        gc.collect()

    @classmethod
    def open(cls, host: str, port: int, match: str) -> Gpu:
        try:
            session = rpc.connect(host, port, behind(match))
        except (OSError, RuntimeError) as error:
            raise ServerLostError(
                f"the server could not be reached, or has another {VARIABLE}: {error}"
            ) from None
        try:
            found = {name: session.get_function(PREFIX + name) for name in NAMES}
        except Exception:
            raise TargetError(
                f"The server at {host}:{port} is not one of this package, of this version; start "
                "it by: python -m tvm_layout_ext.tune.rpc_server"
            ) from None
        cls.session, cls.functions = session, found
        cls.gpu = Gpu(f"{host}:{port}", *json.loads(str(cls.call("gpu"))))
        return cls.gpu


@lru_cache(maxsize=8)
def digest(folder: str) -> str:
    """32 digits that tell a problem's files from all others."""
    sums = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(folder).iterdir()):
        with path.open("rb") as file:
            sums.update(f"{path.name} {path.stat().st_size} ".encode())
            while part := file.read(_PART):
                sums.update(part)
    return sums.hexdigest()


def ready(tracker: Tracker, job: Job | None) -> Gpu:
    """Have a session that holds a trial's problem; wait for a free server if there is none.

    NoServerError or ServerLostError if there is none, TargetError if it is another than ours.
    """
    reason: Exception | None = None
    for _ in range(_OPENINGS):
        try:
            gpu = _There.gpu if _There.gpu is not None and _There.alive() else None
            if gpu is None:
                _There.close()
                free = tracker.next_free()
                start = time.monotonic()
                gpu = _There.open(*free)
                _There.opening += time.monotonic() - start
            if job is not None and job.kind + job.problem != _There.problem:
                start = time.monotonic()
                _prepare(job)
                _There.problem = job.kind + job.problem
                _There.opening += time.monotonic() - start
            return gpu
        except ServerLostError as error:
            reason = error
            _There.close()
    raise ServerLostError(f"No session could be opened, {_OPENINGS} times: {reason}")


def _prepare(job: Job) -> None:
    """Bring a trial's inputs and reference to the server's device, unless they are there."""
    known = digest(job.problem)
    if not _There.call("holds", known):
        for path in sorted(Path(job.problem).iterdir()):
            with path.open("rb") as file:
                while part := file.read(_PART):
                    _There.call("put", known, path.name, part)
        _There.call("keep", known)
    _There.call("prepare", _text(job))


def run(job: Job, seconds: float) -> tuple[dict[str, Any], int]:
    """Send a trial's library and try it; what it gave, and the bytes in use at the server."""
    server = _There.gpu.server if _There.gpu is not None else ""
    start = sent = time.monotonic()
    try:
        _There.call("library", (Path(job.artifact) / LIBRARY).read_bytes())
        sent = time.monotonic()
        answer = json.loads(str(_There.call("measure", _text(job), seconds)))
    except ServerLostError:
        _There.close()
        if sent > start and time.monotonic() - sent >= seconds:
            raise TrialTimeoutError(f"It was ended after {seconds:g} seconds.") from None
        raise ServerLostError(
            f"The connection to {server} was lost while this candidate ran; if that happens again, "
            "it crashes the server's process."
        ) from None
    measured = answer["measured"] | {"server": server}
    phases = {"session": round(_There.opening, 6), "upload": round(sent - start, 6)}
    _There.opening = 0.0
    measured["phases"] |= phases
    return measured, int(answer["memory"])


def _text(job: Job) -> str:
    facts = {"problem": digest(job.problem), "kind": job.kind, "best": job.best}
    return json.dumps(facts | {"timing": asdict(job.timing)})
