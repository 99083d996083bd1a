"""TVM's RPC tracker as the tuner sees it: who is there, and a session with the next free server."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from typing import Any

from tvm import rpc
from tvm.rpc import base

from ..errors import TargetError

__all__ = ["NoServerError", "Tracker"]

_CONNECT_SECONDS = 5.0


class NoServerError(TargetError):
    """A tracker that is not there, or knows no server with the key."""


@dataclass(frozen=True)
class Tracker:
    """A tracker and the key of the servers that shall be used.

    Attributes
    ----------
    host : str
    port : int
    key : str
    patience : float
        A key without any server is waited for so many seconds: one that restarts is back by then.
    """

    host: str
    port: int
    key: str
    patience: float = 15.0

    def servers(self) -> list[str]:
        """Addresses ``host:port`` of the key's servers, those at work among them.

        Raises
        ------
        NoServerError
            If the tracker is not there.
        """
        entries = self._connected().summary()["server_info"]
        mine = [entry for entry in entries if entry["key"] == f"server:{self.key}"]
        return sorted(":".join(map(str, entry["addr"])) for entry in mine)

    def require_servers(self) -> list[str]:
        """Give :meth:`servers`, or raise NoServerError if there is none."""
        found = self.servers()
        if not found:
            raise NoServerError(
                f"The RPC tracker at {self.host}:{self.port} has no server with the key "
                f"{self.key}; start one by: python -m tvm_layout_ext.tune.rpc_server "
                f"--tracker {self.host}:{self.port} --key {self.key}"
            )
        return found

    def session(self, seconds: float) -> tuple[rpc.RPCSession, str]:
        """Wait for a free server, however long others use it, and open a session.

        Parameters
        ----------
        seconds : float
            After which the server ends the session.

        Returns
        -------
        tuple of RPCSession and str
            The session and the server's address.

        Raises
        ------
        NoServerError
            If for :attr:`patience` seconds there is no server at all.
        """
        host, port, match = self._next_free()
        return rpc.connect(host, port, match, session_timeout=seconds), f"{host}:{port}"

    def _connected(self) -> _Connection:
        try:
            # TVM's own connection tries again for a minute before it gives up.
            socket.create_connection((self.host, self.port), _CONNECT_SECONDS).close()
            return _Connection((self.host, self.port))
        except (OSError, RuntimeError) as error:
            raise NoServerError(
                f"There is no RPC tracker at {self.host}:{self.port} ({_short(error)}); start one "
                f"by: python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {self.port}"
            ) from None

    def _next_free(self) -> tuple[str, int, str]:
        connection = self._connected()
        connection.ask(self.key)
        since = time.monotonic()
        while (given := connection.answer(1.0)) is None:
            if self.servers():
                since = time.monotonic()
            elif time.monotonic() - since > self.patience:
                connection.close()
                self.require_servers()
        return given


class _Connection(rpc.TrackerSession):
    """TVM's connection, with a request that can be waited for in steps."""

    def ask(self, key: str) -> None:
        """Queue for a server."""
        base.sendjson(self._sock, [base.TrackerCode.REQUEST, key, "", 1])

    def answer(self, seconds: float) -> tuple[str, int, str] | None:
        """A free server's host, port and match key; None if there is none after some seconds."""
        ready, _, _ = select.select([self._sock], [], [], seconds)
        if not ready:
            return None
        code, value = base.recvjson(self._sock)
        if code != base.TrackerCode.SUCCESS:
            raise RuntimeError(f"The tracker answers with code {code}.")
        host, port, match = value
        return str(host), int(port), str(match)


def _short(error: Any) -> str:
    return str(getattr(error, "strerror", None) or error).rstrip(".").lower()
