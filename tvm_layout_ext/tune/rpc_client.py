"""What a client process does for the RPC runner: it holds one session with one server.

A session that breaks may end the process that uses it; so these functions run in a
:class:`~tvm_layout_ext.tune.worker.Worker`, which is replaced then.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from tvm import rpc

from ..errors import TargetError
from .builder import LIBRARY
from .rpc_session import NAMES, PREFIX
from .trials import Job

__all__ = ["ServerLostError", "close_session", "digest", "open_session", "prepare", "run", "upload"]

#: Bytes of a problem that travel at once.
_PART = 8 << 20


class ServerLostError(ConnectionError):
    """A server that went away while it measured a candidate."""


class _There:
    """The process's session."""

    session: ClassVar[rpc.RPCSession | None] = None
    functions: ClassVar[dict[str, Callable[..., Any]]] = {}

    @classmethod
    def call(cls, name: str, *args: Any) -> Any:
        """Call one of the session's functions; ServerLostError if there is no session now."""
        try:
            return cls.functions[name](*args)
        except Exception as error:
            if cls._alive():
                raise
            raise ServerLostError(str(error).splitlines()[0]) from None

    @classmethod
    def _alive(cls) -> bool:
        try:
            cls.functions["holds"]("0" * 32)
        except Exception:
            return False
        return True


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


def open_session(host: str, port: int, match: str) -> tuple[str, str]:
    """Open a session with a server that the tracker gave; its GPU's name and capability.

    Raises
    ------
    ServerLostError
        If it cannot be reached.
    TargetError
        If the server is another than this package's.
    """
    try:
        session = rpc.connect(host, port, match)
    except (OSError, RuntimeError) as error:
        raise ServerLostError(f"the server could not be reached: {error}") from None
    try:
        found = {name: session.get_function(PREFIX + name) for name in NAMES}
    except Exception:
        raise TargetError(
            f"The server at {host}:{port} is not one of this package, of this version; start it "
            "by: python -m tvm_layout_ext.tune.rpc_server"
        ) from None
    _There.session, _There.functions = session, found
    return str(_There.call("device_name")), str(_There.call("capability"))


def close_session() -> None:
    """Let the session go, if there is one; its server ends it then."""
    _There.session, _There.functions = None, {}
    gc.collect()


def prepare(job: Job) -> None:
    """Bring a trial's inputs and reference to the server's device, unless they are there."""
    known = digest(job.problem)
    if not _There.call("holds", known):
        for path in sorted(Path(job.problem).iterdir()):
            with path.open("rb") as file:
                while part := file.read(_PART):
                    _There.call("put", known, path.name, part)
        _There.call("keep", known)
    _There.call("prepare", _text(job))


def upload(job: Job) -> None:
    """Send a trial's library."""
    _There.call("library", (Path(job.artifact) / LIBRARY).read_bytes())


def run(job: Job, seconds: float) -> dict[str, Any]:
    """Try the candidate that was sent; what it gave, and the bytes in use at the server."""
    answer: dict[str, Any] = json.loads(str(_There.call("measure", _text(job), seconds)))
    return answer


def _text(job: Job) -> str:
    facts = {"problem": digest(job.problem), "kind": job.kind, "best": job.best}
    return json.dumps(facts | {"timing": asdict(job.timing)})
