"""A program split for host and device: what ``build`` makes and ``simulate`` runs."""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import tirx
from tvm.target import Target


@dataclass(frozen=True)
class DeviceProgram:
    """A program split for host and device, as code generation sees the device side.

    ``host`` has entry functions, ``kernels`` finalised device functions by name; ``source`` is what
    was lowered, whose blocks name statements in reports.
    """

    host: tvm.IRModule
    kernels: dict[str, tirx.PrimFunc]
    target: Target | None = None
    source: tvm.IRModule | None = None

    def __repr__(self) -> str:
        return f"DeviceProgram({', '.join(self.kernels) or 'no kernel'}; .kernels has their code)"
