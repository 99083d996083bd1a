"""Kernels that are launched while others run: what they may touch before they wait for these.

Before ``griddepcontrol.wait`` a programmatic dependent launch sees nothing of the kernels before it
for certain (PTX ISA). The simulated GPU runs them in turn; the code tells what would go wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import tvm_ffi
from tvm import tirx

from ..ir import ops
from ..ir.queries import is_call_of
from .model.places import Places, storages_used
from .report import Hazard, Site

if TYPE_CHECKING:
    from .findings import Findings
    from .memory.memory import Memory


@dataclass(frozen=True)
class Early:
    """Numbers of the storages touched before the kernel waits for those before it."""

    dependent: bool
    waits: bool
    reads: frozenset[int]
    writes: frozenset[int]


def find_early(kernel: Any, places: Places) -> Early:
    """What a device function does before its wait, to which every thread must come."""
    before: list[Any] = []
    waits = _up_to_wait(kernel.body, before)
    reads, writes = (
        frozenset(one.number for one in used if one.scope == "global")
        for used in storages_used(places, tvm_ffi.convert(before))
    )
    tags = [str(tag) for tag in kernel.attrs[ops.KERNEL_LAUNCH_PARAMS]]
    return Early(ops.USE_PROGRAMTIC_DEPENDENT_LAUNCH in tags, waits, reads, writes)


def _up_to_wait(statement: Any, before: list[Any]) -> bool:
    """Collect the statements before a wait; whether there is one."""
    if isinstance(statement, tirx.AttrStmt):
        return _up_to_wait(statement.body, before)
    if isinstance(statement, tirx.SeqStmt):
        return any(_up_to_wait(part, before) for part in statement.seq)
    call: Any = statement.value if isinstance(statement, tirx.Evaluate) else None
    if is_call_of(call, ops.PTX_GRIDDEPCONTROL):
        return str(call.args[0].value) == "wait"
    before.append(statement)
    return False


@dataclass
class Overlap:
    """The compiled kernels that may be running still, as far as the next launch knows."""

    findings: Findings
    _running: list[tuple[Any, Sequence[Memory]]] = field(default_factory=list)

    def launch(self, kernel: Any, memories: Sequence[Memory]) -> None:
        """Report what a kernel touches too early, and count it among those that run."""
        if kernel.early.dependent:
            for other, theirs in self._running:
                self._compare(kernel, memories, other, theirs)
        if not kernel.early.dependent or kernel.early.waits:
            self._running.clear()
        self._running.append((kernel, memories))

    def _compare(
        self,
        kernel: Any,
        memories: Sequence[Memory],
        other: Any,
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
                if id(memories[number]) not in rivals:
                    continue
                past = "writes" if id(memories[number]) in written else "reads"
                name = kernel.places.storages[number].name
                message = (
                    f"kernel {kernel.name}, launched while {other.name} runs, {verb} {name} before "
                    f"griddepcontrol.wait, and {other.name} {past} it."
                )
                hazard = Hazard("race", name, -1, (), (Site(name, None, 0),), message)
                self.findings.add(("launch", kernel.name, other.name, name, verb), hazard, 1)
