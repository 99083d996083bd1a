"""TVM's RPC tracker as the tuner sees it: who is there, who is free, and who else waits."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tvm import rpc
from tvm.rpc import base

from ....errors import TargetError

_CONNECT_SECONDS = 5.0
_STEP_SECONDS = 1.0


class NoServerError(TargetError):
    """A tracker that is not there, or knows no server with the key."""


class Free(NamedTuple):
    """A server that the tracker keeps for one client: its address, and the word to be let in."""

    host: str
    port: int
    match: str


@dataclass(frozen=True)
class Tracker:
    """A tracker and the key of the servers that shall be used.

    A key without any server is waited for ``patience`` seconds: one that restarts is back by then.
    """

    host: str
    port: int
    key: str
    patience: float = 15.0

    def __post_init__(self) -> None:
        if not 0 < self.port < 1 << 16:
            raise TargetError(f"Port {self.port} of the RPC tracker is not one of 1 to 65535.")

    def servers(self) -> list[str]:
        """Addresses ``host:port`` of the key's servers; NoServerError without a tracker."""
        entries = self._connected().summary()["server_info"]
        mine = [entry for entry in entries if entry["key"] == f"server:{self.key}"]
        return sorted(":".join(map(str, entry["addr"])) for entry in mine)

    def require_servers(self) -> list[str]:
        """Give :meth:`servers`, or raise NoServerError if there is none."""
        found = self.servers()
        if not found:
            raise NoServerError(
                f"The RPC tracker at {self.host}:{self.port} has no server with the key "
                f"{self.key}; start one by: python -m tvm_layout_ext.tune.measure.rpc.server "
                f"--tracker {self.host}:{self.port} --key {self.key}"
            )
        return found

    def next_free(self, is_over: Callable[[], bool] = lambda: False) -> Free | None:
        """Wait for a free server, however long others use it, and reserve it for a few seconds.

        None if the wait ``is_over``; NoServerError if for :attr:`patience` seconds there is no
        server at all.
        """
        connection = self._connected()
        try:
            connection.ask(self.key)
            seen = time.monotonic()
            while (given := connection.answer(_STEP_SECONDS)) is None:
                if is_over():
                    return None
                if self.servers():
                    seen = time.monotonic()
                elif time.monotonic() - seen > self.patience:
                    self.require_servers()
            return given
        finally:
            connection.close()

    def _connected(self) -> _Connection:
        try:
            # TVM's own connection tries again for a minute before it gives up.
            socket.create_connection((self.host, self.port), _CONNECT_SECONDS).close()
            return _Connection((self.host, self.port))
        except (OSError, RuntimeError) as error:
            raise NoServerError(
                f"There is no RPC tracker at {self.host}:{self.port} ({_short(error)}); start one "
                f"by: python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {self.port} "
                f"--port-end {self.port + 1}"
            ) from None


class _Connection(rpc.TrackerSession):
    """TVM's connection, with a request that can be waited for in steps."""

    def ask(self, key: str) -> None:
        base.sendjson(self._sock, [base.TrackerCode.REQUEST, key, "", 1])

    def answer(self, seconds: float) -> Free | None:
        """A free server; None if there is none after some seconds."""
        ready, _, _ = select.select([self._sock], [], [], seconds)
        if not ready:
            return None
        code, value = base.recvjson(self._sock)
        if code != base.TrackerCode.SUCCESS:
            raise RuntimeError(f"The tracker answers with code {code}.")
        host, port, match = value
        return Free(str(host), int(port), str(match))


def _short(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".").lower()
