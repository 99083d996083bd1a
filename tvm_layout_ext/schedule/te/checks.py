"""Errors that need no bounds: raised at the call, one sentence each, saying what would be legal."""

from __future__ import annotations

from typing import Any

from tvm.ir import is_prim_expr
from tvm.tirx import IterVar

from ...checks import whole
from ...errors import ScheduleError
from .records import StageRecord, StorageAlign, is_reduction

SCOPES = ("global", "shared", "shared.dyn", "local", "warp")
#: Scopes of matrix fragments.
FRAGMENT_PREFIXES = ("wmma.", "m16n8k8.")
_THREADS = tuple(f"{unit}.{dim}" for unit in ("blockIdx", "threadIdx", "vthread") for dim in "xyz")
TAGS = (*_THREADS, "vthread")
#: Loop variables are of type int32.
_LARGEST = 2**31 - 1


def leaf_position(stage: StageRecord, axis: Any, call: str) -> int:
    """Position of a leaf axis of a stage; refuses used-up axes and those of other stages."""
    if not isinstance(axis, IterVar):
        raise ScheduleError(
            f"{call} on stage {stage.name} needs an axis, not a {type(axis).__name__}; "
            f"its axes are {stage.leaf}."
        )
    if axis in stage.leaf:
        return stage.leaf.position(axis)
    why = "is used up by a split or fuse" if axis in stage.used else "is no axis of it"
    raise ScheduleError(
        f"{call} on stage {stage.name}: axis {axis.var.name} {why}; its axes are {stage.leaf}."
    )


def check_factor(name: str, value: Any) -> Any:
    """Return a split factor or number of parts, as an int if it is constant."""
    number = whole(value)
    if number is None:
        if not is_prim_expr(value) or "int" not in str(value.ty):
            raise ScheduleError(f"split needs an integer {name}, not {value!r}.")
        return value
    if not 1 <= number <= _LARGEST:
        limit = f"{name} >= 1" if number < 1 else f"{name} <= {_LARGEST}"
        raise ScheduleError(f"split needs {limit}, not {number}.")
    return number


def check_unmarked(stage: StageRecord, axis: IterVar, call: str) -> None:
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


def check_bindable(stage: StageRecord, axis: IterVar, tag: str) -> None:
    """Refuse the second bind of an axis, or of a thread within a stage (``vthread`` may repeat)."""
    check_unmarked(stage, axis, "bind")
    for other, mark in stage.marks.items():
        if mark.kind == "bind" and mark.value.thread_tag == tag != "vthread":
            raise ScheduleError(
                f"bind on stage {stage.name}: {tag} is already bound to axis {other.var.name}; "
                f"bind axis {axis.var.name} to another thread or fuse the two axes."
            )


def check_neighbours(stage: StageRecord, axes: tuple[IterVar, ...]) -> int:
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


def check_annotation(key: Any, value: Any) -> None:
    """Refuse a key that is no name, and a value that TVM cannot keep."""
    if not isinstance(key, str) or not key:
        raise ScheduleError(f"An annotation's key is a name, not {key!r}.")
    parts = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) for one in parts):
        raise ScheduleError(
            f"The value of annotation {key} is a str, int, float or a list of these, not {value!r}."
        )


def check_attach(stage: StageRecord, parent: Any, axis: Any) -> None:
    """Refuse ``compute_at`` of an output, at itself, or where its result is not consumed."""
    if not isinstance(parent, StageRecord):
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


def check_inlinable(stage: StageRecord) -> None:
    """Refuse to inline an output or a reduction."""
    stage.refuse_output("compute_inline")
    if any(is_reduction(axis) for axis in stage.root):
        raise ScheduleError(
            f"Stage {stage.name} is a reduction, which cannot be inlined; use compute_at."
        )


def _data_axes(stage: StageRecord, axis: Any) -> list[IterVar]:
    """Data axes of a stage, of which ``axis`` must be one."""
    data = [mine for mine in stage.root if not is_reduction(mine)]
    if not isinstance(axis, IterVar) or not any(axis.same_as(mine) for mine in data):
        names = ", ".join(mine.var.name for mine in data) or "none"
        given = axis.var.name if isinstance(axis, IterVar) else repr(axis)
        raise ScheduleError(
            f"storage_align on stage {stage.name} needs an axis of its op.axis ({names}), "
            f"not {given}."
        )
    return data


def check_rows(stage: StageRecord, axis: Any) -> None:
    """Refuse a swizzle along anything but the rows, the last dim but one."""
    data = _data_axes(stage, axis)
    if len(data) < 2 or not axis.same_as(data[-2]):
        rows = f"its rows, {data[-2].var.name}" if len(data) > 1 else "rows, and it has one dim"
        raise ScheduleError(
            f"storage_align on stage {stage.name} swizzles {rows}; it cannot swizzle along "
            f"{axis.var.name}."
        )


def check_align(stage: StageRecord, axis: Any, factor: Any, offset: Any) -> StorageAlign:
    """What ``storage_align`` means: a buffer dimension and its stride."""
    data = _data_axes(stage, axis)
    for name, value in (("factor", factor), ("offset", offset)):
        if whole(value) is None:
            raise ScheduleError(f"storage_align needs an int {name}, not {value!r}.")
    stride, rest = int(factor), int(offset)
    if not (1 <= stride <= _LARGEST and -_LARGEST <= rest <= _LARGEST):
        raise ScheduleError(
            f"storage_align needs {_LARGEST} >= factor >= 1 and an offset between {-_LARGEST} and "
            f"{_LARGEST}, not factor {stride} and offset {rest}."
        )
    dim = next(dim for dim, mine in enumerate(data) if axis.same_as(mine))
    return StorageAlign(dim, stride, rest)
