"""Which servers of a key can run what the tuner builds, and whose times can be compared."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import TargetError
from ..gpu.hardware import Architecture

__all__ = ["Fit", "Gpu", "UnfitServerError"]

_log = logging.getLogger("tvm_layout_ext")


class UnfitServerError(TargetError):
    """A key all of whose servers have no GPU, or another one than the kernels are built for."""


class Gpu(NamedTuple):
    """What a session says of its device.

    Attributes
    ----------
    name : str
        ``cpu`` without a GPU.
    capability : str
        Compute capability, as ``9.0``; empty without a GPU.
    """

    name: str
    capability: str


class Fit:
    """Tells servers that fit from those that do not, which are dropped for good.

    The first that fits says which GPU all others must have, as times of two kinds of GPU cannot be
    compared.

    Parameters
    ----------
    architecture : Architecture
        What kernels are built for.

    Attributes
    ----------
    dropped : dict of str to str
        Why each server was dropped, by its address.
    """

    def __init__(self, architecture: Architecture) -> None:
        self.architecture = architecture
        self.dropped: dict[str, str] = {}
        self._name = ""
        self._lock = threading.Lock()

    def accepts(self, server: str, gpu: Gpu, kind: str) -> bool:
        """Whether a server can be used; if not, it is dropped, and a warning says so once.

        Parameters
        ----------
        server : str
            Address.
        gpu : Gpu
        kind : str
            Of the device that the kernels are for; any server has a CPU.
        """
        if kind != "cuda":
            return True
        with self._lock:
            problem = self._problem(gpu)
            if problem is None:
                self._name = gpu.name
                return True
            if server not in self.dropped:
                self.dropped[server] = problem
                _log.warning("RPC server %s is not used: it %s.", server, problem)
            return False

    def _problem(self, gpu: Gpu) -> str | None:
        if not gpu.capability:
            return "has no CUDA GPU"
        major, minor = self.architecture.capability
        here = tuple(map(int, gpu.capability.split(".")))
        # PTX ISA, "Release Notes", and nvcc's manual, "GPU Feature List": machine code runs on GPUs
        # of its major and at least its minor capability; that of sm_90a on 9.0 alone.
        special = not self.architecture.name[-1].isdigit()
        if here[0] != major or here[1] < minor or (special and here[1] != minor):
            needed = f"{major}.{minor}" if special else f"{major}.{minor} to {major}.x"
            return (
                f"has the GPU {gpu.name} of compute capability {gpu.capability}, and machine code "
                f"for {self.architecture.name} runs on {needed}"
            )
        if self._name and gpu.name != self._name:
            return (
                f"has the GPU {gpu.name}, whose times cannot be compared with those of the "
                f"{self._name} of the first server"
            )
        return None

    def left(self, servers: Sequence[str]) -> list[str]:
        """Servers that were not dropped.

        Raises
        ------
        UnfitServerError
            If there are servers, and all were dropped.
        """
        left = [server for server in servers if server not in self.dropped]
        if servers and not left:
            why = "; ".join(f"{one} {self.dropped[one]}" for one in servers)
            raise UnfitServerError(
                f"No RPC server can run kernels for {self.architecture.name}: {why}. Start one on "
                "a machine with such a GPU and its driver."
            )
        return left
