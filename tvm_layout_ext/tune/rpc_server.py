"""``python -m tvm_layout_ext.tune.rpc_server``: TVM's RPC server, kept up when a kernel crashes.

TVM's server runs each session in a process of its own, but stops serving when one of them crashes.
A tuner tries kernels that crash.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .._compat import serve_rpc
from ..errors import TargetError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process is ended.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default those of the command line; ``--help`` tells them.

    Raises
    ------
    TargetError
        If the tracker's address is none.
    """
    parser = argparse.ArgumentParser(prog="python -m tvm_layout_ext.tune.rpc_server")
    parser.add_argument("--tracker", required=True, help="HOST:PORT of the tracker")
    parser.add_argument("--key", required=True, help="kind of device, e.g. h200")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=9090, help="first port to try")
    parser.add_argument("--port-end", type=int, default=9199, help="end of the ports to try")
    parser.add_argument("--custom-addr", help="address under which the tracker tells of it")
    given = parser.parse_args(arguments)
    host, _, port = given.tracker.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"A tracker's address is HOST:PORT, not {given.tracker!r}.")
    serve_rpc(
        host=given.host,
        port=given.port,
        port_end=given.port_end,
        tracker_addr=(host, int(port)),
        key=given.key,
        custom_addr=given.custom_addr,
    )


if __name__ == "__main__":
    main()
