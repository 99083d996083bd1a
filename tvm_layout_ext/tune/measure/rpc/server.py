"""``python -m tvm_layout_ext.tune.rpc_server``: TVM's RPC server for a tuner, with warm sessions.

TVM's own server forks a process for each session and stops serving when one of them crashes. A
tuner tries kernels that crash, and CUDA cannot be used in a process forked after TVM 0.27 was
imported. This one spawns its sessions (:mod:`.session`), and keeps one that
has imported everything ready, so that a session after a crash begins in milliseconds, not seconds.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from ...._compat import serve_rpc
from ...._version import __version__
from ....errors import TargetError

_log = logging.getLogger("tvm_layout_ext")
LOOPBACK = "127.0.0.1"
#: Sent before a session begins, so that a client knows whose server it has found.
GREETING = f"tvm_layout_ext {__version__}".encode()
_PROGRAM = "from tvm_layout_ext.tune.measure.rpc.session import main; main()"
#: A session's process that is not ready after so long is given up.
START_SECONDS = 120.0
#: The word that a tuner and its servers share, so that a server runs nobody else's code.
VARIABLE = "TVM_LAYOUT_EXT_RPC_TOKEN"
_MARK = "-token="


def shared() -> str:
    """The token of the environment, empty if there is none; TargetError if it has spaces."""
    token = os.environ.get(VARIABLE, "")
    if token.split() != [token] * bool(token):
        raise TargetError(f"{VARIABLE} has spaces; a token is one word: openssl rand -hex 16")
    return token


def behind(key: str) -> str:
    """The key of a session, and behind it the token."""
    token = shared()
    return f"{key} {_MARK}{token}" if token else key


def allowed(words: Sequence[str], token: str) -> bool:
    """Whether the words behind a key have a token, in a time that tells nothing of it."""
    given = next((word.removeprefix(_MARK) for word in words if word.startswith(_MARK)), "")
    return hmac.compare_digest(given.encode(), token.encode())


def start(theirs: socket.socket, folder: str) -> subprocess.Popen[bytes]:
    """Start a process that waits at a socket for a session."""
    number = theirs.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(number), folder], pass_fds=[number]
    )


class _Standby:
    """A process that waits for a session to serve; ``folder`` keeps what clients have sent."""

    def __init__(self, folder: str) -> None:
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = start(theirs, folder)

    def take(self, connection: socket.socket) -> bool:
        """Hand a connection over when the process is ready; whether it ever was."""
        ready, _, _ = select.select([self.control], [], [], START_SECONDS)
        try:
            if ready and self.control.recv(1):
                socket.send_fds(self.control, [b"s"], [connection.fileno()])
                return True
        except OSError:
            pass
        self.process.kill()
        return False


class _Sessions:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.next = _Standby(folder)

    def serve(self, connection: socket.socket, address: Any) -> None:
        standby = self.next
        # The client must see the end of the session's process, not of this copy.
        with connection:
            with Connection(os.dup(connection.fileno())) as pipe:
                pipe.send_bytes(GREETING)
            taken = standby.take(connection)
        self.next = _Standby(self.folder)
        status = standby.process.wait()
        standby.control.close()
        if not taken:
            _log.warning("No process was ready for the session of %s.", address)
        elif status:
            _log.warning("The session of %s %s.", address, _ending(status))


def _ending(status: int) -> str:
    if status == -signal.SIGALRM:
        return "was late or idle for too long, and was ended"
    return f"ended by signal {-status}" if status < 0 else f"ended with exit code {status}"


def _let_in(token: str, words: Sequence[str]) -> bool:
    """Whether a session may begin; nothing of it has been read but its key."""
    if not (fits := allowed(words, token)):
        _log.warning("A session without this server's token was refused.")
    return fits


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is ended; TargetError if the tracker's address is none."""
    parser = argparse.ArgumentParser(prog="python -m tvm_layout_ext.tune.measure.rpc.server")
    parser.add_argument("--tracker", required=True, help="HOST:PORT of the tracker")
    parser.add_argument("--key", required=True, help="kind of device, e.g. h200")
    parser.add_argument(
        "--host", default=LOOPBACK, help="address to listen on; by default this machine alone"
    )
    parser.add_argument("--port", type=int, default=9090, help="first port to try")
    parser.add_argument("--port-end", type=int, default=9199, help="end of the ports to try")
    parser.add_argument("--custom-addr", help="address under which the tracker tells of it")
    given = parser.parse_args(arguments)
    host, _, port = given.tracker.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"A tracker's address is HOST:PORT, not {given.tracker!r}.")
    token = shared()
    if given.host not in (LOOPBACK, "localhost", "::1"):
        who = "knows the token, which is sent as it is," if token else "reaches it"
        _log.warning(
            "Listening on %s: whoever %s can run code on this machine, as RPC is not encrypted%s.",
            given.host,
            who,
            "" if token else f" and {VARIABLE} is not set",
        )
    # An ending by SIGTERM shall remove the folder, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tvm_layout_ext_rpc_") as folder:
        serve_rpc(
            _Sessions(folder).serve,
            allowed=partial(_let_in, token),
            host=given.host,
            port=given.port,
            port_end=given.port_end,
            tracker_addr=(host, int(port)),
            key=given.key,
            custom_addr=given.custom_addr,
        )


if __name__ == "__main__":
    main()
