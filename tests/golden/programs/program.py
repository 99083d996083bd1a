"""A program of the corpus, and what is recorded of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm

import tvm_layout_ext as tlx
from tests.programs.emitted import no_compiler
from tests.programs.kernels import numpy_dtype
from tvm_layout_ext import decisions
from tvm_layout_ext.build import DeviceProgram, device_program
from tvm_layout_ext.simulate import simulate

#: By section, its text.
Record = dict[str, str]


@dataclass(frozen=True)
class Program:
    """A program of the corpus: its name is its subject, a slash, and what tells it from others.

    ``outputs`` of its last parameters are results; with 0 it is not simulated.
    """

    name: str
    make: Callable[[], Any]
    outputs: int = 0
    arch: str = "sm_90a"

    @property
    def target(self) -> tvm.target.Target:
        return tlx.cuda_target(self.arch)


def cuda_text(program: DeviceProgram, target: tvm.target.Target) -> str:
    """CUDA of a program, as TVM hands it to a compiler."""
    generate = tvm.get_global_func("target.build.cuda")
    kernels = tvm.IRModule(dict(sorted(program.kernels.items())))
    with no_compiler():
        return str(generate(kernels, target).inspect_source())


def record(program: Program) -> Record:
    """What the package makes of a program now; of one that it refuses, the sentence."""
    try:
        with decisions.collect() as made:
            source = program.make()
            lowered = device_program(source, target=program.target)
    except Exception as error:
        text = (str(error).strip() or "no text").splitlines()[0]
        return {"refused": f"{type(error).__name__}: {text}\n"}
    found = {"cuda": cuda_text(lowered, program.target), "decisions": _lines(map(str, made))}
    if program.outputs:
        found["simulated"] = _counted(lowered, program.outputs)
    return found


def _lines(texts: Any) -> str:
    return "".join(f"{text}\n" for text in texts)


def _counted(program: DeviceProgram, outputs: int) -> str:
    """Counters of each access, barriers and hazards; lines of the program are left out."""
    (function,) = (f for f in program.host.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    rng = np.random.default_rng(0)
    inputs = [_argument(param, rng) for param in function.params[: len(function.params) - outputs]]
    report = simulate(program, *inputs, progress=False)
    accesses = sorted(
        f"{a.kernel} {a.kind} of {a.buffer}, {a.vector_bytes} bytes: {a.requests} requests, "
        f"{a.sectors} sectors of {a.ideal_sectors}, {a.wavefronts} wavefronts, "
        f"{a.bank_conflicts} conflicts"
        for a in report.accesses
    )
    hazards = sorted(f"hazard: {h.kind} of {h.buffer}, {h.count} times" for h in report.hazards)
    totals = f"{report.barriers} barriers, {report.shared_bytes} bytes of shared memory"
    return _lines([totals, *accesses, *hazards])


def _argument(param: Any, rng: np.random.Generator) -> Any:
    """Numbers from 0 to 3, which are row numbers, too, and exact in all types."""
    shape = [int(extent) for extent in param.ty.shape]
    return rng.integers(0, 4, shape).astype(numpy_dtype(str(param.ty.dtype)))
