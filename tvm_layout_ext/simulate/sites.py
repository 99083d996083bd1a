"""Ties statements of the device function to lines of its script and blocks of the schedule.

Lines come from one print of the function in which every statement carries a numbered mark. A
statement belongs to the one block of the source that writes what it writes and reads what it reads.
StorageRewrite gives a buffer the place and the name of another that is done with: what belongs to
no block belongs to the one that it would fit if a name were that of a buffer that is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from ..ir.queries import blocks_in, loads_in, nodes_in
from .model.places import handle

#: Name, written and read buffers.
_Block = tuple[str, frozenset[str], frozenset[str]]
_STATEMENTS = (
    tirx.BufferStore,
    tirx.Evaluate,
    tirx.Bind,
    tirx.IfThenElse,
    tirx.For,
    tirx.While,
)


@dataclass(frozen=True)
class Script:
    """Printed device functions, and the line, from 1, of each statement by identity."""

    text: str
    lines: dict[int, int]


def _print_kernel(kernel: Any) -> tuple[list[str], dict[int, int]]:
    statements = [one for kind in _STATEMENTS for one in nodes_in(kernel.body, kind)]
    marks = {statement: f"@{number}@" for number, statement in enumerate(statements)}
    lines: dict[int, int] = {}
    text: list[str] = []
    for line in kernel.script(obj_to_annotate=marks).split("\n"):
        numbers = re.findall(r"@(\d+)@", line)
        for number in numbers:
            lines[handle(statements[int(number)])] = len(text) + 1
        bare = re.sub(r"\s*#[ ,]*(@\d+@[ ,]*)+$", "", line)
        # A mark may have a line of its own, which the plain script lacks.
        if bare.strip() or not numbers:
            text.append(bare)
    return text, lines


def print_kernels(kernels: dict[str, Any]) -> Script:
    """Print device functions and find the line of every statement."""
    text: list[str] = []
    lines: dict[int, int] = {}
    for kernel in kernels.values():
        more, found = _print_kernel(kernel)
        lines.update({key: line + len(text) for key, line in found.items()})
        text.extend(more)
    return Script("\n".join(text), lines)


class Blocks:
    """Schedule blocks of the source: name, written buffers and read buffers of each.

    ``kinds`` has scope and type of each buffer, ``kept`` the names that are still there.
    """

    def __init__(
        self,
        blocks: list[_Block],
        kinds: Mapping[str, tuple[str, str] | None] | None = None,
        kept: AbstractSet[str] = frozenset(),
    ) -> None:
        self._blocks = blocks
        self._kinds = {} if kinds is None else kinds
        written = {name for _, writes, _ in blocks for name in writes}
        self._lost = {name for name in written - kept if self._kinds.get(name) is not None}

    def of(self, written: str | None, reads: Callable[[], set[str]]) -> str | None:
        """Name of the block that a statement comes from, or None if that is not certain."""
        if written is None:
            return None
        fitting = [b for b in self._blocks if written in b[1]]
        if len({name for name, _, _ in fitting}) > 1:
            fitting = [b for b in fitting if _fits(b, written, reads())]
        names = {name for name, _, _ in fitting}
        return names.pop() if len(names) == 1 else None

    def replaced(
        self, written: str | None, reads: Callable[[], set[str]]
    ) -> tuple[str, str, str] | None:
        """Device name, own name and block of a buffer at another one's place."""
        if written is None or not self._lost:
            return None
        read = reads()
        if any(_fits(one, written, read) for one in self._blocks):
            return None
        found = {
            (name, own, one[0])
            for own in self._lost
            for name in {written, *read}
            if self._kinds.get(name) == self._kinds[own]
            for one in self._blocks
            if _fits(one, *_instead(name, own, written, read))
        }
        return found.pop() if len(found) == 1 else None


def _fits(block: _Block, written: str, read: set[str]) -> bool:
    return written in block[1] and block[2] | {written} == read | {written}


def _instead(name: str, own: str, written: str, read: set[str]) -> tuple[str, set[str]]:
    """What a statement writes and reads with one name in the place of another."""
    return own if written == name else written, {own if one == name else one for one in read}


def find_blocks(module: Any, kernels: Iterable[Any]) -> Blocks:
    """Collect the schedule blocks of the source of device functions; a lowered one has none."""
    found: list[_Block] = []
    kinds: dict[str, tuple[str, str] | None] = {}

    def name_of(region: Any) -> str:
        buffer = region.source
        kind = str(buffer.scope()), str(buffer.dtype)
        name = str(buffer.name)
        kinds[name] = kind if kinds.setdefault(name, kind) == kind else None
        return name

    functions = () if module is None else module.functions.values()
    bodies = [func.body for func in functions if isinstance(func, tirx.PrimFunc)]
    for block in (block for body in bodies for block in blocks_in(body)):
        writes = frozenset(map(name_of, block.writes))
        reads = frozenset(map(name_of, block.reads))
        if writes:
            found.append((str(block.name_hint), writes, reads))
    made = [
        one for func in kernels for one in nodes_in(func.body, tirx.AllocBuffer, tirx.DeclBuffer)
    ]
    return Blocks(found, kinds, {str(one.buffer.name) for one in made})


def loaded_names(statement: Any) -> set[str]:
    """Names of the buffers that a statement loads."""
    return {str(load.source.name) for load in loads_in(statement)}
