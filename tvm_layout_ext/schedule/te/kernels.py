"""What the stages of one kernel have to agree on: the threads that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tvm import sym, tirx
from tvm.tirx import IterVar

from ...errors import ScheduleError
from .records import AxisMap, StageRecord, is_reduction

_VIRTUAL = ("vthread.x", "vthread.y", "vthread.z")


def _kernel_of(stage: StageRecord, opened: set[StageRecord]) -> StageRecord:
    """The stage that opens the kernel that this one runs in: the outermost that binds a thread."""
    root = stage.root_stage()
    owners = [parent for parent, _ in stage.bound_around()]
    return root if root in opened else [stage, *owners][-1]


def thread_tags(stage: StageRecord) -> AxisMap[str]:
    """Tag, by the loop, of every thread that a stage binds; each plain ``vthread`` has its own."""
    bound = stage.bound
    free = [tag for tag in _VIRTUAL if all(thread.thread_tag != tag for _, thread in bound)]
    tags: AxisMap[str] = AxisMap()
    for axis, thread in bound:
        tags[axis] = str(thread.thread_tag)
        if thread.thread_tag == "vthread":
            if not free:
                raise ScheduleError(
                    f"bind of {axis.var.name} of {stage.name} is one virtual thread too many: "
                    f"TensorIR has {len(_VIRTUAL)} in a kernel; fuse two of the axes or unroll one."
                )
            tags[axis] = free.pop(0)
    return tags


def check_threads(stage: StageRecord, scope: str, opened: set[StageRecord]) -> None:
    """Refuse threads that would leave part of an attached stage undone, inside a kernel.

    Nothing inside can be dealt out to the blocks of a grid, a virtual thread keeps a copy of its
    own of what it fills, and local memory can be filled by its own thread only.
    """
    around = {str(thread.thread_tag) for _, thread in stage.bound_around()}
    if not around and stage.root_stage() not in opened:
        return
    for axis, thread in stage.bound:
        tag = str(thread.thread_tag)
        where = f"bind of {axis.var.name} of {stage.name} to {tag} is not legal"
        if tag.startswith("blockIdx"):
            raise ScheduleError(
                f"{where} inside the kernel of {_kernel_of(stage, opened).name}, whose blocks do "
                f"not share work; bind threadIdx, or compute the stage at its root."
            )
        if tag.startswith("vthread"):
            raise ScheduleError(
                f"{where} inside the kernel of {_kernel_of(stage, opened).name}, because each "
                f"virtual thread would see only its part; leave the axis serial or unroll it."
            )
        if scope == "local" and not is_reduction(axis):
            _check_local(stage, tag, tag in around, where)


def _check_local(stage: StageRecord, tag: str, nested: bool, where: str) -> None:
    if nested:
        raise ScheduleError(
            f"{where} for local memory inside a loop that {tag} runs, because each thread sees "
            f"only its own; leave the axis serial, or use shared memory."
        )
    outside = [reader.name for reader in _readers(stage) if tag not in _threads_of(reader)]
    if outside:
        raise ScheduleError(
            f"{where} for local memory that {outside[0]}, not run by that thread, reads; leave the "
            f"axis serial, or use shared memory."
        )


def _threads_of(stage: StageRecord) -> set[str]:
    return {str(thread.thread_tag) for _, thread in [*stage.bound, *stage.bound_around()]}


def _readers(stage: StageRecord) -> Iterator[StageRecord]:
    """Stages that read a stage, those behind inlined ones instead of these."""
    for reader in stage.downstream():
        if stage in reader.inputs:
            yield from _readers(reader) if reader.inlined else (reader,)


def check_extents(
    stages: Sequence[StageRecord],
    opened: set[StageRecord],
    loop_of: Callable[[StageRecord, IterVar], tirx.For],
) -> None:
    """Refuse a thread that two stages of one kernel bind with different numbers of iterations."""
    analyzer = sym.Analyzer()
    seen: dict[tuple[StageRecord, str], tuple[StageRecord, Any]] = {}
    for stage in reversed(stages):
        kernel = _kernel_of(stage, opened)
        for axis, tag in thread_tags(stage).items():
            extent = loop_of(stage, axis).extent
            other, wanted = seen.setdefault((kernel, tag), (stage, extent))
            if not analyzer.can_prove_equal(extent, wanted):
                raise ScheduleError(
                    f"Stages {other.name} and {stage.name} of one kernel bind {tag} to loops of "
                    f"{wanted} and {extent} iterations; split them so that both have the same."
                )


def check_uniform(
    stage: StageRecord, scope: str, loop_of: Callable[[StageRecord, IterVar], tirx.For]
) -> None:
    """Refuse shared memory filled in a loop that not all threads, or blocks, run equally often."""
    if not scope.startswith("shared"):
        return
    around = [(parent, axis, loop_of(parent, axis)) for parent, axis, _ in stage.loops_around()]
    staged = stage.num_stages is not None and stage.num_stages > 1
    varying = [loop.loop_var for _, _, loop in around if staged or _is_thread(loop)]
    for parent, axis, loop in around:
        used = tirx.analysis.undefined_vars(loop.extent)
        if any(var.same_as(other) for var in used for other in varying):
            versions = f" with {stage.num_stages} versions" if staged else ""
            raise ScheduleError(
                f"Stage {stage.name} in {scope} memory{versions} is computed at a loop "
                f"{axis.var.name} of {parent.name}, whose {loop.extent} iterations are not the "
                f"same for all threads; split by divisors, so that tiles end where rows do, or "
                f"compute it at a loop further out."
            )


def _is_thread(loop: tirx.For) -> bool:
    bound = loop.thread_binding
    return bound is not None and str(bound.thread_tag).startswith("threadIdx")


def check_parallel(stage: StageRecord) -> None:
    """Refuse CPU threads around a kernel, which TVM cannot launch from them."""
    bound = stage.bound
    if not bound:
        return
    inside, thread = bound[-1]
    own = [(stage, axis, stage.marks.get(axis)) for axis in stage.leaf]
    own = own[: stage.leaf.position(inside)]
    for parent, axis, mark in [*own, *stage.loops_around()]:
        if mark is not None and mark.kind == "parallel":
            raise ScheduleError(
                f"parallel of {axis.var.name} of {parent.name} is not legal around the loop "
                f"{inside.var.name} of {stage.name}, which {thread.thread_tag} runs; bind "
                f"{axis.var.name} to blockIdx or leave it serial."
            )
