"""Modules of Relax run by TVM's code for the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax

from benchmarks.relax_numbers import error_of, outputs
from tests.models.running import array_of
from tests.programs.host import CPU
from tvm_layout_ext.models.for_torch.torch_module import TorchMachine, TorchModule


def by_cpu(mod: tvm.IRModule, arrays: list[Any], pipeline: Any = "default") -> list[Any]:
    """What TVM's CPU code gives."""
    return outputs(mod, CPU, pipeline, arrays)


def given_to(mod: tvm.IRModule) -> list[Any]:
    """Random values of a module's parameters."""
    rng = np.random.default_rng(0)
    return [array_of(one.ty, rng) for one in mod["main"].params]


def require_same(after: tvm.IRModule, before: tvm.IRModule, most: float) -> None:
    """Fail unless two modules give the same but for an error, a share of the largest element."""
    arrays = given_to(before)
    assert error_of(by_cpu(after, arrays), by_cpu(before, arrays)) <= most


class OnCpu(TorchModule):
    """A module by TVM's own code for CPUs."""

    def _machine(self, given: Any) -> TorchMachine:
        tensors = tvm.runtime.from_dlpack
        main = relax.VirtualMachine(tvm.compile(self.mod, "llvm"), tvm.cpu())["main"]
        return TorchMachine(lambda *all_of: main(*map(tensors, all_of)))
