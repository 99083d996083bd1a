"""The unrolled steps of a loop that loads fragments and uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ...errors import ScheduleError
from ...ir.annotations import PREFETCH
from ...ir.queries import substitute
from ...ir.rebuild import sequence
from ..pipeline.expand import renewed
from ..pipeline.parts import Part, allocated, blocks_in, check_own, parts_of
from ..pipeline.versions import Versioned, use_version, with_versions


@dataclass(frozen=True)
class Steps:
    """An unrolled loop of annotated loads into ``held`` buffers, and what uses these."""

    loop: Any
    loads: list[Part]
    rest: list[Part]
    keep: list[Any]
    held: list[Versioned]

    @property
    def count(self) -> int:
        """Number of steps."""
        return int(self.loop.extent)

    def version(self, step: int) -> int:
        """Version of a step's fragments; that of step 0 differs from the last one's."""
        return 2 if self.count % 2 and step == self.count - 1 else step % 2

    def load(self, step: int) -> list[Any]:
        """The loads of a step."""
        return [renewed(self._at(part.stmt, step)) for part in self.loads]

    def use(self, step: int) -> list[Any]:
        """The rest of a step."""
        uses = [renewed(self._at(part.stmt, step)) for part in self.rest]
        if not self.keep:
            return uses
        block = SBlock([], [], [], "", sequence(uses), None, self.keep)
        return [SBlockRealize([], True, block)]

    def _at(self, stmt: Any, step: int) -> Any:
        for one in self.held:
            stmt = use_version(stmt, one, tirx.const(self.version(step), "int32"))
        return substitute(stmt, {self.loop.loop_var: self.loop.min + step})


def steps_of(loop: Any) -> Steps | None:
    """Read a loop whose body both loads and uses annotated fragments."""
    if loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED):
        return None
    parts = parts_of(loop, {})
    loads = [p for p in parts if _is_load(p, parts)]
    if not loads:
        return None
    name = loop.loop_var.name
    if loop.kind != tirx.ForKind.UNROLLED or not isinstance(loop.extent, tirx.IntImm):
        raise ScheduleError(
            f"Block {loads[0].name} is to be prefetched in loop {name}, which is not unrolled or "
            "has no constant extent; unroll it, so that two steps can have registers of their own."
        )
    rest = [p for p in parts if p not in loads]
    _check(loads, rest, parts, loop)
    _check_bound(loads, rest, name)
    _check_nested(loads, rest, name)
    filled = {w.buffer.__chandle__() for p in loads for w in p.writes}
    versions = 3 if int(loop.extent) % 2 else 2
    held = [with_versions(b, versions) for b in allocated(loop) if b.__chandle__() in filled]
    keep = [b for b in allocated(loop) if b.__chandle__() not in filled]
    return Steps(loop, loads, rest, keep, held)


def _is_load(part: Part, parts: Sequence[Part]) -> bool:
    """Whether other parts read what annotated blocks fill, not only what is computed from that."""
    asking = (block for block in blocks_in(part.stmt) if PREFETCH in block.annotations)
    filled = [region.source for block in asking for region in block.writes]
    return any(p is not part and p.reads_of(buffer) for buffer in filled for p in parts)


def _check(loads: list[Part], rest: list[Part], parts: list[Part], loop: Any) -> None:
    for load in loads:
        check_own(load, parts, loop)
        for read in load.reads:
            for other in rest:
                if other.writes_of(read.buffer):
                    raise ScheduleError(
                        f"Block {load.name} reads {read.buffer.name}, which block {other.name} "
                        f"writes in loop {loop.loop_var.name}, so it cannot be loaded a step ahead."
                    )


def _check_bound(loads: list[Part], rest: list[Part], name: str) -> None:
    for part in rest:
        if isinstance(part.stmt, tirx.Bind):
            raise ScheduleError(
                f"Block {loads[0].name} is to be prefetched in loop {name}, which binds "
                f"{part.stmt.var.name}; steps run side by side, so write its value where it is "
                "used."
            )


def _check_nested(loads: list[Part], rest: list[Part], name: str) -> None:
    for block in (b for part in rest for b in blocks_in(part.stmt) if PREFETCH in b.annotations):
        raise ScheduleError(
            f"Block {block.name_hint} is to be prefetched inside a step of loop {name}, which "
            f"prefetches {loads[0].name}; compute both at the same loop."
        )
