"""Kernels that are launched while others run: what they may touch before they wait for these.

Before ``griddepcontrol.wait`` a programmatic dependent launch sees nothing of the kernels before it
for certain (PTX ISA). The simulated GPU runs them in turn; the code tells what would go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .compile.kernel import CompiledKernel
from .findings import Findings
from .memory.memory import Memory
from .report import Hazard, Site


@dataclass
class Overlap:
    """The kernels that may be running still, as far as the next launch knows."""

    findings: Findings
    _running: list[tuple[CompiledKernel, Sequence[Memory]]] = field(default_factory=list)

    def launch(self, kernel: CompiledKernel, memories: Sequence[Memory]) -> None:
        """Report what a kernel touches too early, and count it among those that run."""
        if kernel.early.dependent:
            for other, theirs in self._running:
                self._compare(kernel, memories, other, theirs)
        if not kernel.early.dependent or kernel.early.waits:
            self._running.clear()
        self._running.append((kernel, memories))

    def _compare(
        self,
        kernel: CompiledKernel,
        memories: Sequence[Memory],
        other: CompiledKernel,
        theirs: Sequence[Memory],
    ) -> None:
        storages = dict(enumerate(other.places.storages[: len(theirs)]))
        written = {id(theirs[n]) for n, storage in storages.items() if storage.written}
        read = {id(theirs[n]) for n, storage in storages.items() if storage.read}
        for verb, uses, rivals in (
            ("reads", kernel.early.reads, written),
            ("writes", kernel.early.writes, written | read),
        ):
            for number in sorted(uses):
                if id(memories[number]) in rivals:
                    past = "writes" if id(memories[number]) in written else "reads"
                    self._report(kernel, other, number, verb, past)

    def _report(
        self, kernel: CompiledKernel, other: CompiledKernel, number: int, verb: str, past: str
    ) -> None:
        name = kernel.places.storages[number].name
        site = Site(name, None, 0)
        message = (
            f"kernel {kernel.name}, launched while {other.name} runs, {verb} {name} before "
            f"griddepcontrol.wait, and {other.name} {past} it."
        )
        hazard = Hazard("race", name, -1, (), (site,), message)
        self.findings.add(("launch", kernel.name, other.name, name, verb), hazard, 1)
