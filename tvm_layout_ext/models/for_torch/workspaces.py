"""Workspaces of TVM's kernels, kept for a graph of CUDA that writes to them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

#: More than a function takes at once: sums in two kernels take one, attention in parts three.
_MOST = 16
_CUDA, _INTEGER, _BITS = 2, 0, 8  # As DLPack has them.


def keep_workspaces(owner: Any, device: int, kind: int = _CUDA) -> None:
    """Keep the workspaces of a device that no function of this thread has now, for an owner.

    A function takes its workspaces from a pool of its thread's, and gives them back; where a later
    one wants a larger one, the pool gives memory back to the GPU. So whoever captures a call takes
    all that it may have used. They go back to the pool with the owner.
    """
    runtime = ctypes.CDLL(None)
    take, give = runtime.TVMBackendAllocWorkspace, runtime.TVMBackendFreeWorkspace
    take.restype = ctypes.c_void_p
    take.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
    give.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_void_p)
    # The pool gives the smallest that is large enough, and makes one of 4 KB if it has none.
    taken = [take(kind, device, 1, _INTEGER, _BITS) for _ in range(_MOST)]

    def give_back(thread: int = threading.get_ident()) -> None:
        # Another thread's pool does not know them.
        for one in taken if thread == threading.get_ident() else ():
            give(kind, device, one)

    weakref.finalize(owner, give_back).atexit = False
