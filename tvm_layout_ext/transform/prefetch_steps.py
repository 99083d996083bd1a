"""The steps of an unrolled loop that loads fragments and uses them, and steps inside a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from ..errors import ScheduleError
from .fragment_nest import substitute
from .pipeline_expand import renewed, sequence
from .pipeline_parts import Part, blocks_in, parts_of
from .pipeline_versions import Versioned, use_version, with_versions
from .spread_copies import shares

__all__ = ["PREFETCH", "Steps", "steps_of"]

#: Block annotation: load what the block fills one step ahead of its use.
PREFETCH = "layout_ext.prefetch"


def _asks(part: Part) -> bool:
    return any(PREFETCH in block.annotations for block in blocks_in(part.stmt))


@dataclass(frozen=True)
class Steps:
    """An unrolled loop that loads and uses fragments.

    A step may itself be such a loop, whose steps are the *pieces* of this one. Fragments of its own
    are then loaded a piece ahead, also from the last piece of a step to the first of the next.

    Attributes
    ----------
    loop : For
        The loop.
    loads, rest : list of Part
        Annotated loads, and all that uses what they load.
    keep : list of Buffer
        Buffers of the body that stay there.
    held : list of Versioned
        Those that the loads fill.
    inner : Steps, optional
        The pieces of a step.
    """

    loop: Any
    loads: list[Part]
    rest: list[Part]
    keep: list[Any]
    held: list[Versioned]
    inner: Steps | None = None

    @property
    def count(self) -> int:
        """Number of steps."""
        return int(self.loop.extent)

    @property
    def pieces(self) -> int:
        """Number of pieces of a step."""
        return self.inner.count if self.inner else 1

    @property
    def total(self) -> int:
        """Number of pieces of all steps."""
        return self.count * self.pieces

    @property
    def all_loads(self) -> list[Part]:
        """Loads of steps and of pieces."""
        return [*self.loads, *(self.inner.loads if self.inner else [])]

    @property
    def all_held(self) -> list[Versioned]:
        """Buffers that steps and pieces hold."""
        return [*self.held, *(self.inner.held if self.inner else [])]

    def load_ahead(self, at: int) -> list[Any]:
        """What piece ``at`` loads: the next piece's fragments, and a share of the next step's.

        After the last piece come the first ones of the loop again, all of them: those of the next
        chunk. The other pieces of the last step load nothing of the next.
        """
        found = self._piece((at + 1) % self.total)
        step, piece = divmod(at, self.pieces)
        if step + 1 < self.count:
            return found + shares(self._step(step + 1), self.pieces)[piece]
        return found + (self._step(0) if at + 1 == self.total else [])

    def first(self) -> list[Any]:
        """The loads that come before the first piece."""
        return self._step(0) + self._piece(0)

    def use(self, at: int) -> list[Any]:
        """What piece ``at`` does with its fragments."""
        step, piece = divmod(at, self.pieces)
        rest = self.rest if self.inner is None else self.inner.rest
        found = [self._at(part.stmt, step, piece) for part in rest]
        if not self.keep:
            return found
        return [SBlockRealize([], True, SBlock([], [], [], "", sequence(found), None, self.keep))]

    def _step(self, step: int) -> list[Any]:
        return [self._at(part.stmt, step, 0) for part in self.loads]

    def _piece(self, at: int) -> list[Any]:
        loads = self.inner.loads if self.inner else []
        return [self._at(part.stmt, *divmod(at, self.pieces)) for part in loads]

    def _at(self, stmt: Any, step: int, piece: int) -> Any:
        if self.inner is not None:
            number = _version(self.total, step * self.pieces + piece)
            stmt = _in_version(stmt, self.inner.held, number)
            stmt = substitute(stmt, {self.inner.loop.loop_var: self.inner.loop.min + piece})
        stmt = _in_version(stmt, self.held, _version(self.count, step))
        return renewed(substitute(stmt, {self.loop.loop_var: self.loop.min + step}))


def _version(count: int, step: int) -> int:
    """Version of a step's fragments; that of step 0 differs from the last one's."""
    return 2 if count % 2 and step == count - 1 else step % 2


def _in_version(stmt: Any, held: Sequence[Versioned], number: int) -> Any:
    for one in held:
        stmt = use_version(stmt, one, tirx.const(number, "int32"))
    return stmt


def steps_of(loop: Any, outer: int = 1) -> Steps | None:
    """Read a loop whose body both loads and uses annotated fragments.

    Parameters
    ----------
    loop : For
        The loop.
    outer : int
        Steps of the loop around it of which it is a step; 1 if of none.

    Raises
    ------
    ScheduleError
        If the loop or a buffer does not let its loads run ahead.
    """
    if loop.kind not in (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED):
        return None
    parts = parts_of(loop, {})
    loads = [p for p in parts if _asks(p) and _is_read(p, parts)]
    if not loads:
        return None
    name = loop.loop_var.name
    if loop.kind != tirx.ForKind.UNROLLED or not isinstance(loop.extent, tirx.IntImm):
        raise ScheduleError(
            f"Block {loads[0].name} is to be prefetched in loop {name}, which is not unrolled or "
            "has no constant extent; unroll it, so that two steps can have registers of their own."
        )
    rest = [p for p in parts if p not in loads]
    own = _allocated(loop)
    _check(loads, rest, parts, own, name)
    filled = {w.buffer.__chandle__() for p in loads for w in p.writes}
    versions = 3 if outer * int(loop.extent) % 2 else 2
    held = [with_versions(b, versions) for b in own if b.__chandle__() in filled]
    keep = [b for b in own if b.__chandle__() not in filled]
    inner = _pieces(rest, int(loop.extent), keep) if outer == 1 else None
    return Steps(loop, loads, rest, keep, held, inner)


def _pieces(rest: Sequence[Part], steps: int, keep: Sequence[Any]) -> Steps | None:
    """Read the one loop that a step uses its fragments in, if that loads some of its own.

    Raises
    ------
    ScheduleError
        If a step does more than that loop.
    """
    asking = [part for part in rest if _asks(part)]
    if not asking:
        return None
    found = steps_of(asking[0].stmt, steps) if isinstance(asking[0].stmt, tirx.For) else None
    if found is None or found.keep or keep or len(rest) > 1:
        blocks = blocks_in(asking[0].stmt)
        name = next(str(b.name_hint) for b in blocks if PREFETCH in b.annotations)
        raise ScheduleError(
            f"Block {name} is to be prefetched inside a step of another prefetch; this needs a "
            "loop that loads and uses its buffer, has no other buffers, and stands alone."
        )
    return found


def _is_read(load: Part, parts: Sequence[Part]) -> bool:
    return any(p is not load and p.reads_of(w.buffer) for w in load.writes for p in parts)


def _allocated(loop: Any) -> list[Any]:
    return list(loop.body.block.alloc_buffers) if isinstance(loop.body, SBlockRealize) else []


def _check(
    loads: list[Part], rest: list[Part], parts: list[Part], own: list[Any], name: str
) -> None:
    for load in loads:
        for written in load.writes:
            buffer = written.buffer
            if not any(buffer.same_as(b) for b in own):
                raise ScheduleError(
                    f"Buffer {buffer.name}, which block {load.name} loads, is used outside loop "
                    f"{name}, so it cannot have several versions."
                )
            if any(p is not load and p.writes_of(buffer) for p in parts):
                raise ScheduleError(
                    f"Buffer {buffer.name} is written by block {load.name} and again in loop "
                    f"{name}; only a buffer with one writer can be prefetched."
                )
        for read in load.reads:
            for other in rest:
                if other.writes_of(read.buffer):
                    raise ScheduleError(
                        f"Block {load.name} reads {read.buffer.name}, which block {other.name} "
                        f"writes in loop {name}, so it cannot be loaded a step ahead."
                    )
