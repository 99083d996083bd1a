"""``python -m tvm_layout_ext.tune.rpc_server``: the server of :mod:`.measure.rpc.server`."""

from .measure.rpc.server import main

if __name__ == "__main__":
    main()
