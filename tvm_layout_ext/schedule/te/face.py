"""TVM's classic TE schedule, on TensorIR: ``create_schedule`` and :class:`Schedule`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, te, tirx
from tvm.tirx import IterVar

from ...coalesce.rows.plan import Wishes
from ...errors import ScheduleError
from ...transform.tvm_fixes.guard_reductions import refuse_lost_guards
from . import checks, tensors
from .factoring import check_rfactor, factor
from .materialise import in_order, materialise
from .records import CacheRead, CacheWrite, Chain, Rewrite, RFactor, StageRecord
from .stage import Stage


def create_schedule(ops: Any) -> Schedule:
    """Create a schedule in which every operation is computed in a loop nest of its own.

    Parameters
    ----------
    ops : te.Operation, te.Tensor or list of these
        What the program computes in the end.

    Examples
    --------
    .. code-block:: python

        s = tlx.create_schedule(B.op)
        AA = s.cache_read(A, "shared", [B])
        s[AA].storage_align(AA.op.axis[0], 100, 8)
        print(tlx.lower(s, [A, B]))
    """
    return Schedule(ops)


def _operations(ops: Any) -> list[te.Operation]:
    listed = list(ops) if isinstance(ops, (list, tuple, tvm.ir.Array)) else [ops]
    if not listed:
        raise ScheduleError("create_schedule needs at least one operation, not an empty list.")
    return [_operation(op) for op in listed]


def _operation(value: Any) -> te.Operation:
    op = value.op if isinstance(value, te.Tensor) else value
    if not isinstance(op, te.tensor.Operation):
        raise ScheduleError(
            f"create_schedule takes te operations or tensors, not a {type(value).__name__}."
        )
    if isinstance(op, te.PlaceholderOp):
        raise ScheduleError(
            f"create_schedule takes what is computed; {op.name} is a placeholder, an input."
        )
    return op


def _no_scan(op: te.Operation) -> None:
    if isinstance(op, te.tensor.ScanOp):
        raise ScheduleError(
            f"{op.name} is a te.scan, which TensorIR cannot express; write its steps as te.compute "
            f"stages, or the function in TVMScript."
        )


class Schedule:
    """What a user asks of a computation, stage by stage; made by :func:`create_schedule`.

    ``s[tensor]`` is the :class:`Stage` of a tensor or operation; ``stages`` lists them, producers
    first. The schedule only records; ``s.sch``, ``tlx.lower`` and ``tlx.build`` apply it to
    TensorIR from scratch every time.
    """

    def __init__(self, ops: Any) -> None:
        self.stages: list[Stage] = []
        self.rewrites: list[Rewrite] = []
        self.chains: list[Chain] = []
        self._by_op: dict[te.Operation, Stage] = {}
        self.outputs = _operations(ops)
        for op in in_order(self.outputs):
            _no_scan(op)
            self._add(op, [self[tensor] for tensor in op.input_tensors], len(self.stages))
        for op in self.outputs:
            self[op].is_output = True

    def _add(self, op: te.Operation, inputs: list[StageRecord], position: int) -> Stage:
        stage = Stage(op, inputs, self.stages)
        self.stages.insert(position, stage)
        self._by_op[op] = stage
        return stage

    def _replace(self, stage: Stage, op: te.Operation, inputs: list[StageRecord]) -> None:
        """Give a stage another operation; the old one stays a key for it."""
        stage.reset(op)
        stage.inputs = inputs
        self._by_op[op] = stage

    def __getitem__(self, key: Any) -> Stage:
        """Return the stage of a tensor or operation, or that of a name, as ``explain`` has it."""
        if isinstance(key, str):
            named = [s for s in self.stages if key in (s.name, s.name.replace(".", "_"))]
            key = named[0].op if len(named) == 1 else key
        op = key.op if isinstance(key, te.Tensor) else key
        if isinstance(op, te.tensor.Operation) and op in self._by_op:
            return self._by_op[op]
        name = getattr(op, "name", repr(key))
        known = ", ".join(stage.name for stage in self.stages)
        raise ScheduleError(f"The schedule has no stage {name}; its stages are {known}.")

    def __repr__(self) -> str:
        return f"Schedule({', '.join(stage.name for stage in self.stages)})"

    def cache_read(self, tensor: te.Tensor, scope: str, readers: Sequence[Any]) -> te.Tensor:
        """Let ``readers`` read ``tensor`` through a copy in memory ``scope``, e.g. ``shared``.

        Other readers keep the original. The copy that is returned is a key of this schedule.
        """
        checks.check_scope(scope)
        source = self._stage_of(tensor, "cache_read")
        if isinstance(source.op, te.ExternOp):
            raise ScheduleError(
                f"cache_read of {source.name} is not legal: TensorIR does not know what an extern "
                f"operation writes; copy it by a te.compute first."
            )
        stages = self._readers(source, readers)
        cache = tensors.copy_of(tensor, scope)
        stage = self._add(cache.op, [source], self.stages.index(source) + 1)
        stage.scope, stage.is_cache = scope, True
        for reader in stages:
            reader.inputs = [stage if old is source else old for old in reader.inputs]
        self.rewrites.append(CacheRead(source, stage, tuple(stages), tensor.value_index))
        return cache

    def _readers(self, source: Stage, readers: Any) -> list[Stage]:
        listed = readers if isinstance(readers, (list, tuple)) else [readers]
        stages = [self[reader] for reader in listed]
        consumers = [stage for stage in self.stages if source in stage.inputs]
        wrong = [stage.name for stage in stages if stage not in consumers]
        if wrong or not stages:
            legal = ", ".join(stage.name for stage in consumers) or "none"
            raise ScheduleError(
                f"cache_read of {source.name} needs stages that read it; "
                f"{', '.join(wrong) or 'an empty list'} was given and legal are {legal}."
            )
        extern = [stage.name for stage in stages if not isinstance(stage.op, te.ComputeOp)]
        if extern:
            raise ScheduleError(
                f"cache_read of {source.name} for {extern[0]} is not legal: TensorIR does not know "
                f"what an extern operation reads; let it read a te.compute that copies."
            )
        return stages

    def _stage_of(self, tensor: Any, call: str) -> Stage:
        if not isinstance(tensor, te.Tensor):
            raise ScheduleError(f"{call} needs a te.Tensor, not a {type(tensor).__name__}.")
        return self[tensor]

    def cache_write(self, tensor: te.Tensor, scope: str) -> te.Tensor:
        """Compute ``tensor`` in memory ``scope``, e.g. ``local``, and copy the result to its place.

        The tensor that is returned holds the computation and is a key of this schedule. It takes
        over the reduction axes; ``tensor`` keeps its data axes.
        """
        checks.check_scope(scope)
        target = self._untouched(tensor)
        cache, copy = tensors.shadow_of(target.op, scope)
        stage = self._add(cache.op, target.inputs, self.stages.index(target))
        stage.scope = scope
        self._replace(target, copy, [stage])
        self.rewrites.append(CacheWrite(target, stage))
        return cache

    def _untouched(self, tensor: te.Tensor) -> Stage:
        """Stage of a compute with one output, its loops as written, which ``cache_write`` needs."""
        stage = self._stage_of(tensor, "cache_write")
        if not isinstance(stage.op, te.ComputeOp) or stage.op.num_outputs != 1:
            raise ScheduleError(
                f"cache_write needs a compute operation with one output, which {stage.name} is not."
            )
        if stage.is_touched:
            raise ScheduleError(
                f"cache_write of {stage.name} comes before its splits, fusions and bindings, "
                f"because it replaces the loops of the stage."
            )
        return stage

    def rfactor(self, tensor: te.Tensor, axis: IterVar, factor_axis: int = 0) -> te.Tensor:
        """Reduce in two steps: partial results over ``axis``, then their combination.

        Parameters
        ----------
        tensor : te.Tensor
            A reduction, of which at most reduction axes are split or fused.
        axis : IterVar
            A reduction axis; it becomes a data axis of the partial results.
        factor_axis : int
            Position of that axis among the data axes of the partial results.

        Returns
        -------
        te.Tensor
            The partial results, a key of this schedule. The stage of ``tensor`` now reduces over
            ``s[tensor].op.reduce_axis[0]``.
        """
        target = self._stage_of(tensor, "rfactor")
        checks.leaf_position(target, axis, "rfactor")
        position = check_rfactor(target, axis, factor_axis)
        partial, combine, *after = factor(target, axis, position)
        stage = self._add(partial, target.inputs, self.stages.index(target))
        before = tuple(target.root), tuple(target.moves)
        self.rewrites.append(RFactor(target, stage, axis, position, *before, *after))
        self._replace(target, combine, [stage])
        outputs = tuple(partial.output(i) for i in range(partial.num_outputs))
        return outputs[0] if len(outputs) == 1 else outputs

    def fuse_rows(self, tensors: Sequence[Any], **wishes: Any) -> None:
        """Put stages over the same rows into one kernel, see :func:`.fuse_rows.fuse_rows`."""
        listed = tensors if isinstance(tensors, (list, tuple)) else [tensors]
        stages = tuple(self[tensor] for tensor in listed)
        Wishes(**wishes)
        for stage in stages:
            if not isinstance(stage.op, te.ComputeOp):
                stage.refuse_output("fuse_rows")
            if stage.is_touched or stage.inlined or stage.coalesce is not None:
                raise ScheduleError(
                    f"fuse_rows needs stages that nothing was done to yet; {stage.name} was split, "
                    "bound, inlined or left to auto_coalesce."
                )
            stage.is_in_chain = True
        self.chains.append(Chain(stages, wishes))

    @property
    def sch(self) -> s_tir.Schedule:
        """A fresh TensorIR schedule with everything applied, of inputs and then outputs."""
        return self._materialised([*self._inputs(), *self._results()])

    def to_module(self, args: Sequence[Any] | None = None, name: str = "main") -> tvm.IRModule:
        """Apply everything to TensorIR; all inputs and outputs must be among ``args``."""
        if not isinstance(name, str) or not (name.isidentifier() and name.isascii()):
            raise ScheduleError(
                f"A function's name is a word of letters, digits and _, not {name!r}."
            )
        mod = self.to_schedule(args).mod
        return tvm.IRModule({name: mod["main"].with_attr("global_symbol", name)})

    def to_schedule(self, args: Sequence[Any] | None = None) -> s_tir.Schedule:
        """Apply everything to a fresh TensorIR schedule of a function with these parameters.

        By default they are the inputs, in the order of their use, and then the outputs.
        """
        if args is None:
            return self.sch
        self._check_args(args)
        sch = self._materialised(list(args))
        refuse_lost_guards(sch.mod["main"])
        return sch

    def _materialised(self, args: list[Any]) -> s_tir.Schedule:
        return materialise(self.__getitem__, self.stages, self.rewrites, self.chains, args)

    def _inputs(self) -> list[te.Tensor]:
        return [s.op.output(0) for s in self.stages if isinstance(s.op, te.PlaceholderOp)]

    def _results(self) -> list[te.Tensor]:
        """Output tensors of the computation as the user wrote it."""
        return [op.output(i) for op in self.outputs for i in range(op.num_outputs)]

    def _check_args(self, args: Sequence[Any]) -> None:
        if not isinstance(args, (list, tuple, tvm.ir.Array)):
            raise ScheduleError(
                f"The arguments are a list of tensors and variables, [A, B], "
                f"not a {type(args).__name__}."
            )
        for position, arg in enumerate(args):
            if not isinstance(arg, (te.Tensor, tirx.Var)):
                raise ScheduleError(
                    f"Argument {position} has to be a te.Tensor or a te.var, "
                    f"not a {type(arg).__name__}."
                )
            if any(arg.same_as(other) for other in args[:position]):
                raise ScheduleError(f"Argument {position}, {arg.name}, is there twice.")
        given = [arg for arg in args if isinstance(arg, te.Tensor)]
        missing = [
            tensor.name
            for tensor in [*self._inputs(), *self._results()]
            if not any(tensor.op.same_as(arg.op) for arg in given)
        ]
        if missing:
            raise ScheduleError(
                f"The arguments need every input and output of the schedule; "
                f"{', '.join(missing)} are missing."
            )
