"""What a device function touches before it waits for the kernels before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import ir, tirx

from ...ir import ops
from ..model.places import Places, written_by_call

_DEPENDENT = ops.USE_PROGRAMTIC_DEPENDENT_LAUNCH
_CONTROL = ops.PTX_GRIDDEPCONTROL


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
    reads: set[int] = set()
    writes: set[int] = set()

    def note(into: set[int], buffer: Any) -> None:
        storage = places.at(buffer).storage
        if storage.scope == "global":
            into.add(storage.number)

    def call(node: Any) -> None:
        writes.update(s.number for s in written_by_call(places, node) if s.scope == "global")

    rules = [
        (tirx.BufferStore, lambda node: note(writes, node.buffer)),
        (ir.TensorLoad, lambda node: note(reads, node.source)),
        (ir.Call, call),
    ]
    tvm_ffi.structural_walk(tvm_ffi.convert(before), rules)
    tags = [str(tag) for tag in kernel.attrs[ops.KERNEL_LAUNCH_PARAMS]]
    return Early(_DEPENDENT in tags, waits, frozenset(reads), frozenset(writes))


def _up_to_wait(statement: Any, before: list[Any]) -> bool:
    """Collect the statements before a wait; whether there is one."""
    if isinstance(statement, tirx.AttrStmt):
        return _up_to_wait(statement.body, before)
    if isinstance(statement, tirx.SeqStmt):
        return any(_up_to_wait(part, before) for part in statement.seq)
    call: Any = statement.value if isinstance(statement, tirx.Evaluate) else None
    if getattr(getattr(call, "op", None), "name", "") == _CONTROL:
        return str(call.args[0].value) == "wait"
    before.append(statement)
    return False
