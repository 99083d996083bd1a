"""Workspaces of TVM's kernels, kept for a graph of CUDA that writes to them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

#: More than a function takes at once: sums in two kernels take one, attention in parts three.
_MOST = 16
_CUDA, _INTEGER, _BITS = 2, 0, 8  # As DLPack has them.
_threads = threading.local()


def keep_workspaces(owner: Any, device: int, kind: int = _CUDA) -> None:
    """Keep the workspaces of a device that no function of this thread has now, for an owner.

    A function takes its workspaces from a pool of its thread's, and gives them back; where a later
    one wants a larger one, the pool gives memory back to the GPU. So whoever captures a call takes
    all that it may have used. They go back to the pool with the owner.
    """
    pool = _pool(kind, device)
    weakref.finalize(owner, pool.give_back, pool.taken()).atexit = False


class _Pool:
    """TVM's workspaces of a thread and a device."""

    def __init__(self, kind: int, device: int) -> None:
        self.place = kind, device
        #: How many were given back since all were taken.
        self._given = 0
        #: Those that another thread would give back, whose pool does not know them.
        self._waiting: list[list[int]] = []
        runtime = ctypes.CDLL(None)
        self._take, self._give = runtime.TVMBackendAllocWorkspace, runtime.TVMBackendFreeWorkspace
        self._take.restype = ctypes.c_void_p
        integers = ctypes.c_int, ctypes.c_int
        self._take.argtypes = (*integers, ctypes.c_uint64, *integers)
        self._give.argtypes = (*integers, ctypes.c_void_p)

    def taken(self) -> list[int]:
        """Take all there are: the smallest first, and ones of 4 KB that are made for it."""
        while self._waiting:
            self.give_back(self._waiting.pop())
        count, self._given = _MOST + self._given, 0
        return [self._take(*self.place, 1, _INTEGER, _BITS) for _ in range(count)]

    def give_back(self, taken: list[int]) -> None:
        """Give workspaces back, at once in their thread, and else when it takes others."""
        if self is not _pool(*self.place):
            self._waiting.append(taken)
            return
        for one in taken:
            self._give(*self.place, one)
        self._given += len(taken)


def _pool(kind: int, device: int) -> _Pool:
    """The pool of this thread."""
    pools: dict[tuple[int, int], _Pool] = _threads.__dict__.setdefault("pools", {})
    if (kind, device) not in pools:
        pools[kind, device] = _Pool(kind, device)
    return pools[kind, device]
