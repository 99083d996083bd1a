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

from ... import decisions
from ...errors import ScheduleError
from ...ir import ops
from ...ir.annotations import PREFETCH
from ...ir.contents import contents
from ...ir.queries import depends_on, is_call_of, substitute
from ...ir.rebuild import block_with, loop_with, realize_with, sequence, stripped
from ..base import function_pass
from ..pipeline.parts import Part, Region, parts_of
from .spread_copies import shares
from .steps import Steps, steps_of

_NAME = "PrefetchSharedToRegister"


def _is_barrier(part: Part) -> bool:
    stmt = part.stmt
    return isinstance(stmt, tirx.Evaluate) and is_call_of(stmt.value, ops.TVM_STORAGE_SYNC)


@dataclass(frozen=True)
class _Chunks:
    """A pipelined loop over chunks: wait and barrier, the copies and the rest, and the steps."""

    loop: Any
    arrive: list[Any]
    copies: list[Part]
    steps: Steps

    def spread(self) -> list[list[Any]]:
        """What each step but the last does of the copies: the first all, if a step needs one."""
        copies, count = [part.stmt for part in self.copies], self.steps.count - 1
        if any(_meet(self.loop, part, one) for part in self.copies for one in self.steps.rest):
            return [copies, *([] for _ in range(count - 1))]
        return shares(copies, count)

    def first_loads(self, iteration: Any) -> list[Any]:
        """The loads of a chunk's first step, left out where there is no such chunk."""
        loop = self.loop
        loads = [substitute(s, {loop.loop_var: iteration}) for s in self.steps.load(0)]
        versions = {int(r.buffer.shape[0]) for p in self.steps.loads for r in _constant(p.reads)}
        if all(_is_anywhere(part.stmt, loop.loop_var, versions) for part in self.steps.loads):
            return loads
        return [tirx.IfThenElse(iteration < loop.min + loop.extent, sequence(loads), None)]


def _constant(regions: Sequence[Region]) -> list[Region]:
    """Regions of buffers whose first extent is a number."""
    return [r for r in regions if isinstance(r.buffer.shape[0], int | tirx.IntImm)]


def _is_anywhere(stmt: Any, var: Any, versions: set[int]) -> bool:
    """Whether a statement uses a loop's variable for the number of a version only."""

    def fold(node: Any) -> Any:
        is_version = isinstance(node.b, tirx.IntImm) and int(node.b) in versions
        return tirx.IntImm(str(node.ty), 0) if is_version else node

    folded = tvm_ffi.structural_map(stmt, [(tirx.FloorMod, fold)], order="post")
    return not depends_on(folded, var)


def _meet(loop: Any, part: Part, step: Part) -> bool:
    """Whether the order of a statement and one of a step matters."""
    return any(part.reads_of(written.buffer) for written in step.writes) or not all(
        _other_version(loop, touched, part) for touched in (*step.reads, *step.writes)
    )


def _chunks_of(loop: Any) -> _Chunks | None:
    """Read a loop whose body waits for a chunk and then goes through its steps."""
    if loop.kind != tirx.ForKind.SERIAL:
        return None
    parts = parts_of(loop, {})
    if not parts or not isinstance(parts[-1].stmt, tirx.For):
        return None
    if any(isinstance(part.stmt, tirx.Bind) for part in parts):
        return None
    barriers = [i for i, part in enumerate(parts[:-1]) if _is_barrier(part)]
    if not barriers:
        return None
    steps = steps_of(parts[-1].stmt)
    if steps is None or steps.count < 2:
        return None
    cut = barriers[-1] + 1
    copies = parts[cut:-1]
    if not all(_other_version(loop, r, c) for p in steps.loads for r in p.reads for c in copies):
        return None
    return _Chunks(loop, [p.stmt for p in parts[:cut]], copies, steps)


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


def _inside(steps: Steps) -> Any:
    """Steps whose loads run ahead inside the chunk."""
    found = steps.load(0)
    for step in range(steps.count):
        if step + 1 < steps.count:
            found += steps.load(step + 1)
        found += steps.use(step)
    return _holding(steps, found)


def _holding(steps: Steps, statements: list[Any]) -> Any:
    block = SBlock([], [], [], "", sequence(statements), None, [one.new for one in steps.held])
    return SBlockRealize([], True, block)


def _across(chunks: _Chunks) -> Any:
    """Steps whose last one loads the first fragments of the next chunk."""
    steps, loop = chunks.steps, chunks.loop
    first = [*chunks.arrive, *chunks.first_loads(loop.min)]
    body: list[Any] = []
    spread = chunks.spread()
    for step in range(steps.count - 1):
        body += [*steps.load(step + 1), *spread[step], *steps.use(step)]
    body += chunks.arrive
    body += chunks.first_loads(loop.loop_var + 1)
    body += steps.use(steps.count - 1)
    inner = sequence(body)
    if isinstance(loop.body, SBlockRealize):
        inner = realize_with(loop.body, block_with(loop.body.block, body=inner))
    return _holding(steps, [*first, loop_with(loop, body=inner)])


class _Prefetches:
    def __init__(self) -> None:
        self.done: list[str] = []

    def loop(self, loop: Any, mutator: Any) -> Any:
        chunks = _chunks_of(loop)
        if chunks is not None:
            self._tell(chunks.steps, f"across loop {loop.loop_var.name}")
            return _across(chunks)
        steps = steps_of(loop)
        if steps is not None:
            self._tell(steps, "inside it")
            return _inside(steps)
        return mutator.default_mutate(loop)

    def _tell(self, steps: Steps, where: str) -> None:
        for part in steps.loads:
            self.done.append(part.name)
            text = f"loaded one step of loop {steps.loop.loop_var.name} ahead, {where}"
            decisions.note(_NAME, part.name, text)


@function_pass()
def PrefetchSharedToRegister(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that loads annotated fragments one step before they are used.

    Block annotation ``layout_ext.prefetch`` marks the loads. Their unrolled loop is written out,
    and its steps use two versions of the fragments in turn (three where the number of steps is
    odd). Where the loop ends the body of a pipeline, and no copy of a body can meet what the body
    reads, wait and barrier move before the last step, the first fragments of the next body are
    loaded there, and copies are shared out over the other steps. Else loads run ahead inside the
    unrolled loop only.

    Refuses by name: a load in no unrolled loop together with its consumer, a buffer that is used
    outside that loop or has a second writer, a source that the loop writes, a load in a loop inside
    such a step, a value bound in a step.
    """
    asking = [
        str(b.name_hint) for b in contents(func.body).nodes(SBlock) if PREFETCH in b.annotations
    ]
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
    return func.with_body(stripped(body, PREFETCH))
