"""Errors that need no bounds: raised at the call, one sentence each, saying what would be legal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tvm import tirx
from tvm.ir import is_prim_expr
from tvm.tirx import IterVar

from ..errors import ScheduleError
from .axes import is_reduction

if TYPE_CHECKING:
    from .stage import Stage

__all__ = [
    "check_align",
    "check_attach",
    "check_bindable",
    "check_factor",
    "check_inlinable",
    "check_neighbours",
    "check_scope",
    "check_unmarked",
    "leaf_position",
    "thread_tag",
]

SCOPES = ("global", "shared", "shared.dyn", "local", "warp")
#: Scopes of matrix fragments.
FRAGMENT_PREFIXES = ("wmma.", "m16n8k8.")
_THREADS = tuple(f"{unit}.{dim}" for unit in ("blockIdx", "threadIdx", "vthread") for dim in "xyz")
TAGS = (*_THREADS, "vthread")


def leaf_position(stage: Stage, axis: Any, call: str) -> int:
    """Position of a leaf axis of a stage.

    Raises
    ------
    ScheduleError
        If it is no axis, or one that a split or fusion used up, or another stage's.
    """
    if not isinstance(axis, IterVar):
        raise ScheduleError(
            f"{call} on stage {stage.name} needs an axis, not a {type(axis).__name__}; "
            f"its axes are {stage.leaf}."
        )
    if axis in stage.leaf:
        return stage.leaf.index(axis)
    why = "is used up by a split or fuse" if axis in stage.used else "is no axis of it"
    raise ScheduleError(
        f"{call} on stage {stage.name}: axis {axis.var.name} {why}; its axes are {stage.leaf}."
    )


def check_factor(name: str, value: Any) -> None:
    """Refuse a split factor, or number of parts, that is no integer or not positive."""
    number = int(value) if isinstance(value, tirx.IntImm) else value
    if isinstance(number, int) and not isinstance(number, bool):
        if number < 1:
            raise ScheduleError(f"split needs {name} >= 1, not {number}.")
    elif not is_prim_expr(number):
        raise ScheduleError(f"split needs an integer {name}, not {value!r}.")


def check_unmarked(stage: Stage, axis: IterVar, call: str) -> None:
    """Refuse to split, fuse or bind an axis that already is bound, vectorized and so on."""
    mark = stage.marks.get(axis)
    if mark is not None:
        raise ScheduleError(
            f"{call} on stage {stage.name}: axis {axis.var.name} is already {mark}; "
            f"it takes one of bind, vectorize, unroll, parallel and tensorize, after its splits."
        )


def thread_tag(thread: Any) -> str:
    """Tag of a thread axis, e.g. ``threadIdx.x``; refuses anything else."""
    tag = thread.thread_tag if isinstance(thread, IterVar) else None
    if tag not in TAGS:
        given = tag or repr(thread)
        raise ScheduleError(f"bind needs a te.thread_axis of {', '.join(TAGS)}, not {given}.")
    return str(tag)


def check_bindable(stage: Stage, axis: IterVar, tag: str) -> None:
    """Refuse the second bind of an axis, or of a thread within a stage (``vthread`` may repeat)."""
    check_unmarked(stage, axis, "bind")
    for other, mark in stage.marks.items():
        if mark.kind == "bind" and mark.value.thread_tag == tag != "vthread":
            raise ScheduleError(
                f"bind on stage {stage.name}: {tag} is already bound to axis {other.var.name}; "
                f"bind axis {axis.var.name} to another thread or fuse the two axes."
            )


def check_neighbours(stage: Stage, axes: tuple[IterVar, ...]) -> int:
    """Position of the first of ``axes`` in the loop nest, if they may be fused."""
    positions = [leaf_position(stage, axis, "fuse") for axis in axes]
    names = ", ".join(axis.var.name for axis in axes)
    if positions != list(range(positions[0], positions[0] + len(positions))):
        raise ScheduleError(
            f"fuse on stage {stage.name} needs neighbouring axes, outer first, not {names}; "
            f"the order is {stage.leaf}."
        )
    if len({is_reduction(axis) for axis in axes}) > 1:
        raise ScheduleError(
            f"fuse on stage {stage.name} needs axes of one kind; "
            f"{names} mix reduction and data axes."
        )
    return positions[0]


def check_scope(scope: Any) -> None:
    """Refuse an unknown storage scope."""
    known = isinstance(scope, str) and (scope in SCOPES or scope.startswith(FRAGMENT_PREFIXES))
    if not known:
        raise ScheduleError(f"Unknown storage scope {scope!r}; known are {', '.join(SCOPES)}.")


def check_attach(stage: Stage, parent: Any, axis: Any) -> None:
    """Refuse ``compute_at`` of an output, at itself, or where its result is not consumed."""
    if not hasattr(parent, "leaf"):
        raise ScheduleError(
            f"compute_at of stage {stage.name} needs a stage, s[tensor], "
            f"not a {type(parent).__name__}."
        )
    if parent is stage:
        raise ScheduleError(f"Stage {stage.name} cannot be computed at itself.")
    stage.refuse_output("compute_at")
    if not parent.depends_on(stage):
        legal = ", ".join(consumer.name for consumer in stage.downstream()) or "none"
        raise ScheduleError(
            f"Stage {stage.name} cannot be computed at stage {parent.name}, which does not use it; "
            f"legal are {legal}."
        )
    leaf_position(parent, axis, f"compute_at of {stage.name}")


def check_inlinable(stage: Stage) -> None:
    """Refuse to inline an output or a reduction."""
    stage.refuse_output("compute_inline")
    if any(is_reduction(axis) for axis in stage.root):
        raise ScheduleError(
            f"Stage {stage.name} is a reduction, which cannot be inlined; use compute_at."
        )


def check_align(stage: Stage, axis: Any, factor: Any, offset: Any) -> int:
    """Buffer dimension that ``storage_align`` means."""
    data = [mine for mine in stage.root if not is_reduction(mine)]
    if not isinstance(axis, IterVar) or not any(axis.same_as(mine) for mine in data):
        names = ", ".join(mine.var.name for mine in data) or "none"
        given = axis.var.name if isinstance(axis, IterVar) else repr(axis)
        raise ScheduleError(
            f"storage_align on stage {stage.name} needs an axis of its op.axis ({names}), "
            f"not {given}."
        )
    for name, value in (("factor", factor), ("offset", offset)):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ScheduleError(f"storage_align needs an int {name}, not {value!r}.")
    if factor < 1 or not 0 <= offset < factor:
        raise ScheduleError(
            f"storage_align needs factor >= 1 and 0 <= offset < factor, "
            f"not factor {factor} and offset {offset}."
        )
    return next(dim for dim, mine in enumerate(data) if axis.same_as(mine))
