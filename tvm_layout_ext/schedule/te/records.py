"""What a user asked for, as plain data; :mod:`.materialise` applies it to TensorIR later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tvm import te
from tvm.tirx import IterVar

from ...errors import ScheduleError
from ...transform.auto_coalesce import Outcome, Request

T = TypeVar("T")


def new_axis(name: str, reduction: bool, dom: Any = None) -> IterVar:
    """Create an axis; one made by a split or a fusion has no domain until bounds are known."""
    return IterVar(dom, name, IterVar.CommReduce if reduction else IterVar.DataPar)


def is_reduction(axis: IterVar) -> bool:
    """Whether an axis is one that a reduction sums over."""
    return bool(axis.iter_type == IterVar.CommReduce)


class Axes(list[IterVar]):
    """An ordered list of axes, outermost first."""

    def __contains__(self, axis: Any) -> bool:
        return any(axis.same_as(mine) for mine in self)

    def __str__(self) -> str:
        return ", ".join(axis.var.name for axis in self) or "none"

    def position(self, axis: IterVar) -> int:
        """Position of an axis that is in the list."""
        return next(i for i, mine in enumerate(self) if axis.same_as(mine))


class AxisMap(MutableMapping[IterVar, T]):
    """A dictionary keyed by axes, which cannot be hashed; their variables can."""

    def __init__(self) -> None:
        self._items: dict[Any, tuple[IterVar, T]] = {}

    def __getitem__(self, axis: IterVar) -> T:
        return self._items[axis.var][1]

    def __setitem__(self, axis: IterVar, value: T) -> None:
        self._items[axis.var] = axis, value

    def __delitem__(self, axis: IterVar) -> None:
        del self._items[axis.var]

    def __iter__(self) -> Iterator[IterVar]:
        return iter([axis for axis, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)


@dataclass(frozen=True)
class Split:
    """``parent`` becomes ``outer`` and ``inner``; one of ``factor`` and ``nparts`` is None."""

    parent: IterVar
    outer: IterVar
    inner: IterVar
    factor: Any
    nparts: Any


@dataclass(frozen=True)
class Fuse:
    """Neighbouring ``axes`` become ``fused``; no axes at all give a loop of one iteration."""

    axes: tuple[IterVar, ...]
    fused: IterVar


@dataclass(frozen=True)
class Reorder:
    """``axes`` take, in this order, the places that they now have."""

    axes: tuple[IterVar, ...]


Move = Split | Fuse | Reorder


@dataclass(frozen=True)
class Chain:
    """Stages that go into one kernel of rows, as ``wishes`` for ``fuse_rows`` say."""

    stages: tuple[StageRecord, ...]
    wishes: Mapping[str, Any]


@dataclass(frozen=True)
class LoopMark:
    """What a loop becomes; ``value`` is a thread axis, or the intrinsic of ``tensorize``."""

    kind: str
    value: Any = None

    def __str__(self) -> str:
        return f"bound to {self.value.thread_tag}" if self.kind == "bind" else _DONE[self.kind]


_DONE = {
    "vectorize": "vectorized",
    "unroll": "unrolled",
    "parallel": "parallel",
    "tensorize": "tensorized",
}


@dataclass(frozen=True)
class Attach:
    """Compute a stage inside the loop ``axis`` of ``stage``."""

    stage: StageRecord
    axis: IterVar


@dataclass(frozen=True)
class StorageAlign:
    """Stride of buffer dimension ``dim`` is ``offset`` modulo ``factor`` elements."""

    dim: int
    factor: int
    offset: int


@dataclass(eq=False, repr=False)
class StageRecord:
    """What was asked of one operation; :class:`.stage.Stage` has the calls that ask for it.

    ``inputs`` are the stages that it reads, ``stages`` all of the schedule, producers first;
    ``root`` has ``op.axis`` and ``op.reduce_axis``, ``leaf`` the loops as they are now, ``used``
    what a split or a fusion replaced.
    """

    op: te.Operation
    inputs: list[StageRecord]
    stages: Sequence[StageRecord]
    is_output: bool = False
    is_cache: bool = False
    inlined: bool = False
    attach: Attach | None = None
    scope: str | None = None
    marks: AxisMap[LoopMark] = field(default_factory=AxisMap)
    pragmas: list[tuple[IterVar, str, Any]] = field(default_factory=list)
    annotations: dict[str, Any] = field(default_factory=dict)
    alignments: list[StorageAlign] = field(default_factory=list)
    swizzle_mode: str | None = None
    num_stages: int | None = None
    async_copy: bool | str = "auto"
    coalesce: Request | None = None
    outcome: Outcome | None = None  #: Of ``coalesce``, when the schedule was last applied
    is_in_chain: bool = False
    policy: str | None = None
    store_predicate: Any = None

    def __post_init__(self) -> None:
        self.reset(self.op)

    def reset(self, op: te.Operation) -> None:
        """Take another operation, whose loops nobody has touched yet."""
        self.op = op
        axes = [*op.axis, *op.reduce_axis] if isinstance(op, te.ComputeOp) else []
        self.root, self.leaf, self.used = Axes(axes), Axes(axes), Axes()
        self.moves: list[Move] = []

    def __repr__(self) -> str:
        return f"Stage({self.name}: {self.leaf})"

    @property
    def name(self) -> str:
        """Name of the operation."""
        return str(self.op.name)

    @property
    def is_touched(self) -> bool:
        """Whether a loop was split, fused, reordered or marked."""
        return bool(self.moves) or any(self.marks.values())

    @property
    def bound(self) -> list[tuple[IterVar, IterVar]]:
        """Bound loops and their thread axes, outermost first."""
        marks = [(axis, self.marks.get(axis)) for axis in self.leaf]
        return [(axis, mark.value) for axis, mark in marks if mark and mark.kind == "bind"]

    def depends_on(self, other: StageRecord) -> bool:
        """Whether this stage reads ``other``, directly or through further stages."""
        seen: set[StageRecord] = set()
        waiting = list(self.inputs)
        while waiting:
            stage = waiting.pop()
            if stage not in seen:
                seen.add(stage)
                waiting.extend(stage.inputs)
        return any(stage is other for stage in seen)

    def downstream(self) -> Iterator[StageRecord]:
        """Iterate over the stages that depend on this one."""
        return (stage for stage in self.stages if stage.depends_on(self))

    def root_stage(self) -> StageRecord:
        """The stage at the root in whose loops this one is computed in the end."""
        stage = self
        while stage.attach is not None:
            stage = stage.attach.stage
        return stage

    def loops_around(self) -> Iterator[tuple[StageRecord, IterVar, LoopMark | None]]:
        """Loops that this stage is computed in, innermost first: their stage, axis and mark."""
        attach = self.attach
        while attach is not None:
            parent, leaf = attach.stage, attach.stage.leaf
            around = leaf[: leaf.position(attach.axis) + 1] if attach.axis in leaf else []
            yield from ((parent, axis, parent.marks.get(axis)) for axis in reversed(around))
            attach = parent.attach

    def bound_around(self) -> list[tuple[StageRecord, IterVar]]:
        """Stages and thread axes of the bound loops around this stage, innermost first."""
        return [
            (parent, mark.value)
            for parent, _, mark in self.loops_around()
            if mark is not None and mark.kind == "bind"
        ]

    def refuse_output(self, call: str) -> None:
        """Raise ScheduleError if the stage is an output of the schedule or one of its inputs."""
        if not isinstance(self.op, te.ComputeOp):
            kind = "an input" if isinstance(self.op, te.PlaceholderOp) else "an extern operation"
            raise ScheduleError(f"{call} is not legal on {self.name}, which is {kind}.")
        if self.is_output:
            raise ScheduleError(f"{call} is not legal on {self.name}, an output of the schedule.")


@dataclass(frozen=True)
class CacheRead:
    """``readers`` read output ``value_index`` of ``source`` through ``cache``."""

    source: StageRecord
    cache: StageRecord
    readers: tuple[StageRecord, ...]
    value_index: int


@dataclass(frozen=True)
class CacheWrite:
    """``cache`` computes what ``target`` then copies."""

    target: StageRecord
    cache: StageRecord


@dataclass(frozen=True)
class RFactor:
    """``partial`` keeps one result for each iteration of ``axis``; ``target`` combines them.

    ``root`` and ``moves`` are those of the target from before.
    """

    target: StageRecord
    partial: StageRecord
    axis: IterVar
    factor_axis: int
    root: tuple[IterVar, ...]
    moves: tuple[Move, ...]
    partial_loops: tuple[IterVar, ...]
    combine_loops: tuple[IterVar, ...]


Rewrite = CacheRead | CacheWrite | RFactor
