"""Load fragments one step before they are multiplied, into registers of their own.

::

    # before                              # after, in outline (S steps of a chunk)
    for k in range(n):                    wait; barrier; frag[0] = shared[0, 0]
        wait; barrier                     for k in range(n):
        copy chunk k + ahead                  for s in range(S - 1):      # written out
        for s in unroll(S):                       frag[(s + 1) % 2] = shared[k, s + 1]
            frag = shared[k, s]                   copy a share of chunk k + ahead
            use(frag)                             use(frag[s % 2])
                                              wait; barrier
                                              frag[0] = shared[k + 1, 0]
                                              use(frag[(S - 1) % 2])

The last use of a chunk so hides the first loads of the next, as in Triton's ``TritonGPUPrefetch``
and CUTLASS' multistage main loop. Where no barrier of a pipeline tells that the next chunk is
there, loads run ahead inside a chunk only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize

from .. import decisions
from ..errors import ScheduleError
from .fragment_nest import substitute
from .mark_annotated import MARK
from .pipeline_expand import renewed, sequence
from .pipeline_parts import Part, blocks_in, parts_of
from .pipeline_versions import Versioned, use_version, with_versions
from .rebuild import block_with, loop_with, realize_with, without_annotations
from .spread_copies import shares

__all__ = ["PREFETCH", "PrefetchSharedToRegister"]

#: Block annotation: load what the block fills one step ahead of its use.
PREFETCH = "layout_ext.prefetch"
_NAME = "PrefetchSharedToRegister"


@dataclass(frozen=True)
class _Steps:
    """An unrolled loop that loads and uses fragments.

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
    """

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


def _steps_of(loop: Any) -> _Steps | None:
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
    own = _allocated(loop)
    _check(loads, rest, parts, own, name)
    _check_nested(loads, rest, name)
    filled = {w.buffer.__chandle__() for p in loads for w in p.writes}
    versions = 3 if int(loop.extent) % 2 else 2
    held = [with_versions(b, versions) for b in own if b.__chandle__() in filled]
    keep = [b for b in own if b.__chandle__() not in filled]
    return _Steps(loop, loads, rest, keep, held)


def _is_load(part: Part, parts: Sequence[Part]) -> bool:
    """Whether other parts read what annotated blocks fill, not only what is computed from that."""
    asking = (block for block in blocks_in(part.stmt) if PREFETCH in block.annotations)
    filled = [region.source for block in asking for region in block.writes]
    return any(p is not part and p.reads_of(buffer) for buffer in filled for p in parts)


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


def _check_nested(loads: list[Part], rest: list[Part], name: str) -> None:
    for block in (b for part in rest for b in blocks_in(part.stmt) if PREFETCH in b.annotations):
        raise ScheduleError(
            f"Block {block.name_hint} is to be prefetched inside a step of loop {name}, which "
            f"prefetches {loads[0].name}; compute both at the same loop."
        )


def _is_barrier(part: Part) -> bool:
    stmt = part.stmt
    return isinstance(stmt, tirx.Evaluate) and _calls(stmt.value, "tirx.tvm_storage_sync")


def _calls(value: Any, name: str) -> bool:
    return isinstance(value, tvm.ir.Call) and value.op.name == name


@dataclass(frozen=True)
class _Chunks:
    """A pipelined loop around the steps.

    Attributes
    ----------
    loop : For
        The loop over chunks.
    arrive : list of Stmt
        Wait and barrier, after which a chunk is there.
    copies : list of Stmt
        What starts copies of later chunks.
    steps : _Steps
        The steps of a chunk.
    """

    loop: Any
    arrive: list[Any]
    copies: list[Any]
    steps: _Steps


def _chunks_of(loop: Any) -> _Chunks | None:
    """Read a loop whose body waits for a chunk and then goes through its steps."""
    if loop.kind != tirx.ForKind.SERIAL:
        return None
    parts = parts_of(loop, {})
    if not parts or not isinstance(parts[-1].stmt, tirx.For):
        return None
    barriers = [i for i, part in enumerate(parts[:-1]) if _is_barrier(part)]
    if not barriers:
        return None
    steps = _steps_of(parts[-1].stmt)
    if steps is None or steps.count < 2:
        return None
    cut = barriers[-1] + 1
    copies = parts[cut:-1]
    if not all(_other_version(loop, r, c) for p in steps.loads for r in p.reads for c in copies):
        return None
    return _Chunks(loop, [p.stmt for p in parts[:cut]], [p.stmt for p in copies], steps)


def _other_version(loop: Any, read: Any, copy: Part) -> bool:
    """Whether a copy never writes the version that a load of the same body reads."""
    for written in copy.writes_of(read.buffer):
        if read.bounds is None or written.bounds is None:
            return False
        versions = int(read.buffer.shape[0])
        one, other = read.bounds[0][0], written.bounds[0][0]
        if not _differ(loop.loop_var, one, other, versions):
            return False
    return True


def _differ(var: Any, one: Any, other: Any, versions: int) -> bool:
    """Whether two indices of versions differ, for each remainder of the loop variable."""
    analyzer = tvm.sym.Analyzer()
    for remainder in range(versions):
        value = {var: var * versions + remainder}
        if not analyzer.can_prove(substitute(one, value) != substitute(other, value)):
            return False
    return True


def _inside(steps: _Steps) -> Any:
    """Steps whose loads run ahead inside the chunk."""
    found = steps.load(0)
    for step in range(steps.count):
        if step + 1 < steps.count:
            found += steps.load(step + 1)
        found += steps.use(step)
    return _holding(steps, found)


def _holding(steps: _Steps, statements: list[Any]) -> Any:
    block = SBlock([], [], [], "", sequence(statements), None, [one.new for one in steps.held])
    return SBlockRealize([], True, block)


def _across(chunks: _Chunks) -> Any:
    """Steps whose last one loads the first fragments of the next chunk."""
    steps, loop = chunks.steps, chunks.loop
    first = [*chunks.arrive, *(substitute(s, {loop.loop_var: loop.min}) for s in steps.load(0))]
    body: list[Any] = []
    spread = shares(chunks.copies, steps.count - 1)
    for step in range(steps.count - 1):
        body += [*steps.load(step + 1), *spread[step], *steps.use(step)]
    body += chunks.arrive
    body += [substitute(s, {loop.loop_var: loop.loop_var + 1}) for s in steps.load(0)]
    body += steps.use(steps.count - 1)
    inner = sequence(body)
    if isinstance(loop.body, SBlockRealize):
        inner = realize_with(loop.body, block_with(loop.body.block, body=inner))
    return _holding(steps, [*first, loop_with(loop, body=inner)])


class _Prefetches:
    """Rewrites the loops of a function, the outer first."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def loop(self, loop: Any, mutator: Any) -> Any:
        """Visit a loop."""
        chunks = _chunks_of(loop)
        if chunks is not None:
            self._tell(chunks.steps, f"across loop {loop.loop_var.name}")
            return _across(chunks)
        steps = _steps_of(loop)
        if steps is not None:
            self._tell(steps, "inside it")
            return _inside(steps)
        return mutator.default_mutate(loop)

    def _tell(self, steps: _Steps, where: str) -> None:
        for part in steps.loads:
            self.done.append(part.name)
            text = f"loaded one step of loop {steps.loop.loop_var.name} ahead, {where}"
            decisions.note(_NAME, part.name, text)


def _strip(block: SBlock) -> SBlock:
    return without_annotations(block, PREFETCH)


@tirx.transform.prim_func_pass(opt_level=0, name="tvm_layout_ext.PrefetchSharedToRegister")
def _prefetch(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
    if func.attrs.get(MARK, None) is None:
        return func
    asking = [str(b.name_hint) for b in blocks_in(func.body) if PREFETCH in b.annotations]
    if not asking:
        return func
    prefetches = _Prefetches()
    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, prefetches.loop)])
    for name in asking:
        if name not in prefetches.done:
            raise ScheduleError(
                f"Block {name} is to be prefetched, but no unrolled loop holds both it and a block "
                "that reads its buffer; compute it at an unrolled loop of its consumer."
            )
    return func.with_body(tvm_ffi.structural_map(body, [(SBlock, _strip)], order="post"))


def PrefetchSharedToRegister() -> Any:
    """Create the pass that loads annotated fragments one step before they are used.

    Block annotation ``layout_ext.prefetch``, which ``sch.prefetch`` writes, marks the loads. Their
    unrolled loop is written out, and its steps use two versions of the fragments in turn (three
    where the number of steps is odd). Where the loop ends the body of one that
    ``InjectMultiStageBuffer`` pipelined, and no copy of a body can meet what the body reads, the
    wait and barrier move before the last step, the first fragments of the next body are loaded
    there, and copies are shared out over the other steps. In the last body these loads read a
    version that nobody fills any more, and nobody uses what they bring. Else loads run ahead inside
    the unrolled loop only, which one step leaves as it is.

    Does not handle, and refuses by name: a load in no unrolled loop together with its consumer, a
    buffer that is used outside that loop or has a second writer, a source that the loop writes, a
    load in a loop inside such a step.

    Raises
    ------
    ScheduleError
        In these cases.
    """
    return _prefetch
