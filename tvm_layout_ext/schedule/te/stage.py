"""One stage of a TE-style schedule: it records what the user asks for and checks what it can."""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.ir import is_prim_expr
from tvm.tirx import IterVar

from ...errors import ScheduleError
from ...gpu.hardware import MAX_ACCESS_BYTES
from ...transform.auto_coalesce import Request
from ...transform.shared_memory.swizzle_modes import mode_text
from ..primitives.double_buffer import check_async_copy, check_num_stages
from ..primitives.eviction_policy import check_policy
from ..primitives.swizzle import SwizzleMode
from . import checks
from .coalesced import Coalesced
from .records import (
    Attach,
    Axes,
    Fuse,
    LoopMark,
    Move,
    Reorder,
    Split,
    StageRecord,
    is_reduction,
    new_axis,
)


class Stage(StageRecord):
    """How one operation is computed; made by a :class:`.Schedule`, found as ``s[tensor]``.

    Every call is checked as far as that needs no bounds, and recorded; TensorIR sees the record in
    one fixed order, so the order of calls on different stages does not matter.
    """

    @property
    def leaf_iter_vars(self) -> list[IterVar]:
        """The loops as they are now, outermost first; what :attr:`leaf` is, under TVM's name."""
        return list(self.leaf)

    def split(
        self, parent: IterVar, factor: Any = None, nparts: Any = None
    ) -> tuple[IterVar, IterVar]:
        """Split an axis in two; a factor that does not divide the extent gives a guard.

        Give either ``factor``, the extent of the inner axis, or ``nparts``, that of the outer one.
        The two new axes are named ``i.outer`` and ``i.inner``.
        """
        position = self._splittable(parent)
        if (factor is None) == (nparts is None):
            given = "neither" if factor is None else "both"
            raise ScheduleError(
                f"split on stage {self.name} needs either factor or nparts; {given} was given."
            )
        if factor is None:
            nparts = checks.check_factor("nparts", nparts)
        else:
            factor = checks.check_factor("factor", factor)
        name, reduction = parent.var.name, is_reduction(parent)
        outer, inner = (new_axis(f"{name}.{part}", reduction) for part in ("outer", "inner"))
        self._move(Split(parent, outer, inner, factor, nparts), position, [parent], [outer, inner])
        return outer, inner

    def _splittable(self, axis: IterVar) -> int:
        position = checks.leaf_position(self, axis, "split")
        checks.check_unmarked(self, axis, "split")
        return position

    def fuse(self, *axes: IterVar) -> IterVar:
        """Fuse neighbouring axes into ``i.j.fused``; without axes, add a loop of one iteration."""
        if not axes:
            return self._add_unit_loop()
        position = checks.check_neighbours(self, axes)
        for axis in axes:
            checks.check_unmarked(self, axis, "fuse")
        if len(axes) == 1:
            return axes[0]
        name = ".".join(axis.var.name for axis in axes) + ".fused"
        fused = new_axis(name, is_reduction(axes[0]))
        self._move(Fuse(axes, fused), position, axes, [fused])
        return fused

    def _add_unit_loop(self) -> IterVar:
        if len(self.leaf):
            raise ScheduleError(
                f"fuse() without axes is for a stage without loops; {self.name} has {self.leaf}."
            )
        fused = new_axis("singleton", reduction=False)
        self._move(Fuse((), fused), 0, (), [fused])
        return fused

    def _move(self, move: Move, position: int, old: Any, new: list[IterVar]) -> None:
        self.leaf[position : position + len(old)] = new
        self.used = Axes([*self.used, *old])
        self.moves.append(move)

    def reorder(self, *axes: IterVar) -> None:
        """Put the given axes in the given order, in the places that they have among the loops."""
        positions = [checks.leaf_position(self, axis, "reorder") for axis in axes]
        if len(set(positions)) < len(positions):
            names = ", ".join(axis.var.name for axis in axes)
            raise ScheduleError(f"reorder on stage {self.name} names an axis twice: {names}.")
        for position, axis in zip(sorted(positions), axes, strict=True):
            self.leaf[position] = axis
        self.moves.append(Reorder(axes))

    def tile(
        self, x_parent: IterVar, y_parent: IterVar, x_factor: Any, y_factor: Any
    ) -> tuple[IterVar, IterVar, IterVar, IterVar]:
        """Split two axes and reorder to ``x_outer, y_outer, x_inner, y_inner``, as returned."""
        # Everything is checked before anything changes.
        if self._splittable(x_parent) == self._splittable(y_parent):
            raise ScheduleError(
                f"tile on stage {self.name} needs two axes, not {x_parent.var.name} twice."
            )
        factors = [checks.check_factor("factor", value) for value in (x_factor, y_factor)]
        x_outer, x_inner = self.split(x_parent, factor=factors[0])
        y_outer, y_inner = self.split(y_parent, factor=factors[1])
        self.reorder(x_outer, y_outer, x_inner, y_inner)
        return x_outer, y_outer, x_inner, y_inner

    def bind(self, axis: IterVar, thread_axis: IterVar) -> None:
        """Run the iterations of an axis on the threads of ``te.thread_axis("threadIdx.x")`` etc."""
        checks.leaf_position(self, axis, "bind")
        checks.check_bindable(self, axis, checks.thread_tag(thread_axis))
        self.marks[axis] = LoopMark("bind", thread_axis)

    def _mark(self, axis: IterVar, mark: LoopMark) -> None:
        checks.leaf_position(self, axis, mark.kind)
        checks.check_unmarked(self, axis, mark.kind)
        self.marks[axis] = mark

    def vectorize(self, axis: IterVar) -> None:
        """Do all iterations of an axis in one vector instruction."""
        self._mark(axis, LoopMark("vectorize"))

    def unroll(self, axis: IterVar) -> None:
        """Unroll the loop of an axis."""
        self._mark(axis, LoopMark("unroll"))

    def parallel(self, axis: IterVar) -> None:
        """Run the iterations of an axis on CPU threads."""
        self._mark(axis, LoopMark("parallel"))

    def pragma(self, axis: IterVar, pragma_type: str, pragma_value: Any = 1) -> None:
        """Put ``pragma_<pragma_type>`` on the loop of an axis, e.g. ``auto_unroll_max_step``."""
        checks.leaf_position(self, axis, "pragma")
        checks.check_annotation(pragma_type, pragma_value)
        self.pragmas.append((axis, f"pragma_{pragma_type}", pragma_value))

    def annotate(self, key: str, value: Any) -> None:
        """Annotate the block of this stage; ``value`` is a str, int, float or a list of these."""
        checks.check_annotation(key, value)
        self.annotations[key] = value

    def compute_at(self, parent: StageRecord, axis: IterVar) -> None:
        """Compute this stage inside the loop ``axis`` of a stage that uses it."""
        checks.check_attach(self, parent, axis)
        self.attach, self.inlined = Attach(parent, axis), False

    def compute_inline(self) -> None:
        """Put this stage's expression where it is used, so that it needs no buffer."""
        checks.check_inlinable(self)
        self.attach, self.inlined = None, True

    def compute_root(self) -> None:
        """Compute this stage in a loop nest of its own, which is how every stage begins."""
        self.attach, self.inlined = None, False

    def set_scope(self, scope: str) -> None:
        """Keep the result in ``global``, ``shared``, ``shared.dyn``, ``local`` or ``warp`` memory.

        A stage without a scope gets ``shared`` when it is computed inside a block's loops and
        ``local`` inside a thread's, as in TVM's classic schedules.
        """
        checks.check_scope(scope)
        self.refuse_output("set_scope")
        self.scope = scope

    def storage_align(
        self,
        axis: IterVar,
        factor: int | None = None,
        offset: int | None = None,
        *,
        swizzle: SwizzleMode | None = None,
    ) -> None:
        """Lay rows out so that columns and patches of the tile meet different banks.

        ``factor`` and ``offset`` make the stride of a dimension ``offset`` modulo ``factor``
        elements. A 32-wide fp32 tile aligned with ``(32, 1)`` has rows of 33, so that a column
        touches every bank once. ``swizzle`` permutes rows instead, or chooses the padding.

        Parameters
        ----------
        axis : IterVar
            The dimension, from ``op.axis``; for a swizzle that of the rows, the last but one.
        factor, offset : int
            TVM takes the least stride ``s`` that holds a row and has
            ``(s - offset) % factor == 0``.
        swizzle : str, int, tuple of int, Layout or LinearLayout
            A mode of :func:`.swizzle.swizzle`: ``"auto"``, ``"xor"``, ``"pad"``, 32, 64, 128, ...
        """
        if swizzle is None:
            align = checks.check_align(self, axis, factor, offset)
            self.refuse_output("storage_align")
            others = [known for known in self.alignments if known.dim != align.dim]
            self.alignments = [*others, align]
            self.swizzle_mode = None
            return
        if factor is not None or offset is not None:
            raise ScheduleError(
                f"storage_align on stage {self.name} takes factor and offset, or a swizzle, "
                "not both."
            )
        checks.check_rows(self, axis)
        self.refuse_output("storage_align")
        self.swizzle_mode = mode_text(swizzle)
        self.alignments = []

    def double_buffer(self, num_stages: int = 2, *, async_copy: bool | str = "auto") -> None:
        """Keep versions of this cache, see :func:`.double_buffer.double_buffer`."""
        if not self.is_cache:
            raise ScheduleError(
                f"double_buffer needs a stage that cache_read made; {self.name} is none."
            )
        check_async_copy(async_copy)
        self.num_stages, self.async_copy = check_num_stages(num_stages), async_copy

    def auto_coalesce(
        self,
        *,
        num_threads: int | None = None,
        vector_bytes: int = MAX_ACCESS_BYTES,
        stage: str = "auto",
    ) -> Coalesced:
        """Map this stage's loops to threads, in place of splitting and binding them.

        See :func:`.auto_coalesce.auto_coalesce` for what the arguments mean. The mapping is chosen
        when the schedule is applied; what is returned shows it then, and ``tlx.explain`` prints it.
        """
        if not isinstance(self.op, te.ComputeOp):
            self.refuse_output("auto_coalesce")
        if self.is_touched or self.inlined:
            raise ScheduleError(
                f"auto_coalesce of stage {self.name} needs loops that nothing was done to yet; "
                f"its axes are {self.leaf}."
            )
        self.coalesce, self.outcome = Request(num_threads, vector_bytes, stage), None
        return Coalesced(self)

    def eviction_policy(self, policy: str) -> None:
        """Let L2 evict the results last, or first, see :func:`.eviction_policy`."""
        self.policy = check_policy(policy)

    def set_store_predicate(self, predicate: Any) -> None:
        """Store where ``thread.var.equal(0)`` holds, as TensorIR does, and nothing else."""
        if not is_prim_expr(predicate):
            raise ScheduleError(
                f"set_store_predicate on stage {self.name} needs an expression like "
                f"thread.var.equal(0), not {predicate!r}."
            )
        self.store_predicate = predicate

    def env_threads(self, threads: Any) -> None:
        """Refuse: TensorIR binds threads to loops only."""
        raise ScheduleError(
            f"env_threads on stage {self.name} is not there, because TensorIR binds threads to "
            f"loops only; use s[stage].bind(axis, thread)."
        )

    def prefetch(self, tensor: Any, var: Any, offset: Any) -> None:
        """Refuse: TensorIR has no statement that prefetches."""
        raise ScheduleError(
            f"prefetch on stage {self.name} is not there, because TensorIR has no such statement; "
            f"to load tiles ahead use s.cache_read(tensor, 'shared', readers), compute_at, and "
            f"double_buffer on the cache."
        )

    def tensorize(self, axis: IterVar, intrin: Any) -> None:
        """Compute the loops from ``axis`` inwards by an intrinsic, declared or named."""
        if not isinstance(intrin, str) and not isinstance(getattr(intrin, "name", None), str):
            raise ScheduleError(
                f"tensorize on stage {self.name} needs what te.decl_tensor_intrin gives, or the "
                f"name of a registered intrinsic, not a {type(intrin).__name__}."
            )
        self._mark(axis, LoopMark("tensorize", intrin))
