"""Runs a device program, launch after launch, and writes the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from tvm import ir, tirx

from ..errors import SimulationError
from ..gpu import hardware
from ..ir import ops
from ..ir.device_program import DeviceProgram
from ..ir.queries import is_call_of, nodes_in
from .compile.host import ArrayArgument, Host
from .compile.kernel import CompiledKernel, KernelRun, compile_kernel
from .findings import Findings
from .memory.memory import FRESH, Memory
from .model.warp_batch import Geometry
from .overlap import Overlap
from .report import AccessCounts, Hazard, Report, Site
from .report import Launch as LaunchReport
from .sites import find_blocks, print_kernels

_QUIET_SECONDS = 2.0
_LINE_SECONDS = 1.0


class Progress:
    """Says how many blocks of a launch are done; a terminal shows one line that changes."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._start = self._last = time.monotonic()
        self._label = ""
        self._done = self._total = 0
        self._open = False

    def close(self) -> None:
        """End the line that changes."""
        if self._open:
            print(file=sys.stderr)  # noqa: T201

    def begin(self, label: str, total: int) -> None:
        """Start a launch of ``total`` blocks."""
        self._label, self._total, self._done = label, total, 0

    def advance(self, blocks: int) -> None:
        """Note that more blocks are done."""
        self._done += blocks
        now = time.monotonic()
        quiet = now - self._start < _QUIET_SECONDS or now - self._last < _LINE_SECONDS
        if quiet or not self._wanted:
            return
        self._last, self._open = now, sys.stderr.isatty()
        text = (
            f"simulate {self._label}: {self._done:,} of {self._total:,} blocks, "
            f"{now - self._start:.0f} s"
        )
        ends = {"end": "\r", "flush": True} if self._open else {}
        print(text, file=sys.stderr, **ends)  # type: ignore[call-overload]  # noqa: T201


def run_program(
    program: DeviceProgram,
    arrays: Sequence[Any],
    *,
    grid_sample: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Report:
    """Run a device program; parameters as of :func:`tvm_layout_ext.simulate`."""
    display = Progress(progress is not False)
    try:
        return _Simulation(program, grid_sample, seed, display).run(arrays)
    finally:
        display.close()


@dataclass(frozen=True)
class _Compiled:
    """A program's kernels, compiled; ``findings`` has their sites, and ``script`` is their text."""

    program: DeviceProgram
    functions: dict[str, Any]
    kernels: dict[str, CompiledKernel]
    findings: Findings
    script: str

    def again(self) -> _Compiled:
        """The same for another simulation."""
        for kernel in self.kernels.values():
            kernel.reset()
        return replace(self, findings=self.findings.of_none())


#: The program that ran last, which may be run for another size. Nobody has it while it runs.
_last: list[_Compiled] = []


def _compiled(program: DeviceProgram) -> _Compiled:
    """Compile the kernels of a program, or take those that ran last."""
    with suppress(IndexError):
        known = _last.pop()
        if known.program is program and known.functions == program.kernels:
            return known
    findings = Findings()
    blocks = find_blocks(program.source, program.kernels.values())
    script = print_kernels(program.kernels)
    kernels = {
        name: compile_kernel(name, function, findings, script, blocks)
        for name, function in program.kernels.items()
    }
    return _Compiled(program, dict(program.kernels), kernels, findings, script.text)


class _Simulation:
    def __init__(
        self, program: DeviceProgram, grid_sample: int | None, seed: int, display: Progress
    ) -> None:
        self._program, self._sample, self._display = program, grid_sample, display
        self._random = np.random.default_rng(seed)
        self._compiled = _compiled(program)
        self._findings, self._kernels = self._compiled.findings, self._compiled.kernels
        self._overlap = Overlap(self._findings)
        self._report = Report(script=self._compiled.script)
        self._written: dict[int, Any] = {}

    def run(self, arrays: Sequence[Any]) -> Report:
        host = Host(_entry(self._program), self._launch, poisoned=self._sample is None)
        outputs = _written_parameters(host, self._kernels)
        host.bind_arguments(arrays, lambda name: name in outputs)
        host.run()
        for argument in host.arguments:
            if argument.name in outputs:
                self._report.outputs[argument.name] = self._result(argument)
        self._finish()
        _last[:] = [self._compiled.again()]
        return self._report

    def _launch(
        self, name: str, geometry: Geometry, memories: list[Memory], scalars: list[Any]
    ) -> None:
        kernel = self._kernels[name]
        if problem := hardware.launch_problem(geometry.extents):
            raise SimulationError(f"Kernel {name} {problem}.")
        kernel.scalars[:] = scalars
        chosen = self._choose(geometry.blocks, geometry.cluster)
        if not geometry.blocks or not geometry.threads:
            return
        self._overlap.launch(kernel, memories)
        launch = KernelRun(kernel, geometry, memories, self._findings)
        self._display.begin(name, len(chosen))
        launch.run(chosen, self._display.advance)
        told = LaunchReport(name, len(chosen), geometry.blocks, launch.barriers)
        self._report.launches.append(told)
        for memory in memories if self._sample is not None else ():
            if memory.shadow is not None:
                fresh = memory.shadow.writes != 0
                self._written[id(memory)] = self._written.get(id(memory), False) | fresh

    def _choose(self, blocks: int, cluster: int) -> Any:
        """Blocks that are run: all, or the first, the last and some between; whole clusters."""
        if self._sample is None or self._sample >= blocks:
            return np.arange(blocks)
        count, last = -(-self._sample // cluster), blocks // cluster - 1
        ends = [0, last][:count]
        inner = self._random.choice(np.arange(1, last), count - len(ends), replace=False)
        chosen = np.sort(np.r_[ends, inner].astype(np.int64))
        return (chosen[:, None] * cluster + np.arange(cluster)).ravel()

    def _result(self, argument: ArrayArgument) -> Any:
        memory = argument.memory
        if self._sample is None:
            self._check_written(argument)
            return argument.array()
        written = self._written.get(id(memory), np.zeros(memory.cells, bool))
        ratio = argument.view.dtype.itemsize // memory.granule
        whole = written if ratio == 1 else np.reshape(written, (-1, ratio)).all(axis=1)
        mask = np.logical_not(argument.view.of(whole))
        return np.ma.masked_array(argument.array(), mask)

    def _check_written(self, argument: ArrayArgument) -> None:
        """Report elements of an output that the caller left to the program and nobody wrote."""
        memory = argument.memory
        if memory.poison is None:
            return
        missing = np.flatnonzero(memory.poison == FRESH)
        if not len(missing):
            return
        index = int(missing[0]) * memory.granule // argument.view.dtype.itemsize
        site = Site(argument.name, None, 0)
        message = (
            f"output {argument.name} holds elements that nobody wrote, the first at index {index}."
        )
        hazard = Hazard("poison", argument.name, index, (), (site,), message)
        self._findings.add(("unwritten", argument.name), hazard, len(missing))

    def _finish(self) -> None:
        report = self._report
        report.hazards = self._findings.hazards(redundant=False)
        report.redundant = self._findings.hazards(redundant=True)
        report.unlisted = self._findings.dropped
        report.shared_bytes = max(k.shared_bytes for k in self._kernels.values())
        report.accesses = [
            AccessCounts.of(access, name)
            for name, kernel in self._kernels.items()
            for access in kernel.accesses
            if access.made
        ]


def _entry(program: DeviceProgram) -> Any:
    found = program.host.functions.items()
    functions = {gv.name_hint: func for gv, func in found if isinstance(func, tirx.PrimFunc)}
    if "main" not in functions and len(functions) != 1:
        raise SimulationError(
            f"The module has functions {', '.join(sorted(functions))} and none is named "
            "main, so it is not clear which to run."
        )
    return functions.get("main") or next(iter(functions.values()))


def _written_parameters(host: Host, kernels: dict[str, CompiledKernel]) -> set[str]:
    function, roots = host.function, dict(host.names)
    for view in nodes_in(function.body, tirx.DeclBuffer):
        source = roots.get(view.data.args[0].__chandle__()) if _is_data(view.data) else None
        if source is not None:
            roots[view.buffer.__chandle__()] = source
    found: set[str] = set()
    maps: dict[int, Any] = {}
    calls = nodes_in(function.body, ir.Call)
    for call in calls:
        if is_call_of(call, ops.TVM_CALL_PACKED) and len(call.args) > _ENCODED:
            maps[call.args[1].__chandle__()] = call.args[_ENCODED]
    for call in calls:
        if not is_call_of(call, ops.CALL_FFI_KERNEL):
            continue
        given = [maps.get(a.__chandle__(), a) for a in call.args[1:]]
        pointers = [a for a in given if _is_data(a)]
        storages = kernels[str(call.args[0].value)].places.storages
        for pointer, storage in zip(pointers, storages, strict=False):
            name = roots.get(pointer.args[0].__chandle__())
            if storage.written and name is not None:
                found.add(name)
    return found


#: Which argument of ``runtime.cuTensorMapEncodeTiled`` is the buffer.
_ENCODED = 4


def _is_data(expr: Any) -> bool:
    return is_call_of(expr, ops.BUFFER_DATA)
