"""A program split for host and device: what ``build`` makes and ``simulate`` runs."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.target import Target


@dataclass(frozen=True)
class DeviceProgram:
    """A program split for host and device, as code generation sees the device side.

    Attributes
    ----------
    host : tvm.IRModule
        Entry functions; kernels are called through ``T.call_ffi_kernel``.
    kernels : dict of str to PrimFunc
        Finalised device functions by name.
    target : tvm.target.Target, optional
        What they are for.
    source : tvm.IRModule, optional
        What was lowered; its schedule blocks name statements in reports.
    """

    host: tvm.IRModule
    kernels: dict[str, tirx.PrimFunc]
    target: Target | None = None
    source: tvm.IRModule | None = None
