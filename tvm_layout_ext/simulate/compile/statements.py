"""Compiles the statements of a device function to a program for the :class:`.machine.Machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import ir, tirx

from ...errors import NotModelled, SimulationError
from ...ir import ops
from ...ir.queries import nodes_in, op_name
from ..machine.machine import Barrier, Branch, End, Jump, MachineStep, RunInstruction
from ..model.code import LAUNCH, UNIFORM, VARYING, Code, constant, lift, set_slot
from ..model.places import handle
from ..model.values import numpy_type
from ..report import Site
from ..warpgroups.steps import AwaitNamed, AwaitPhase, AwaitRegisters
from .plain_statements import PlainCompiler, step_of
from .unit_calls import barrier_of

#: Threads wait in these for some others of their block.
_AWAITS = (
    ops.CUDA_MBARRIER_WAIT,
    ops.PTX_BAR_SYNC_COUNT,
    ops.PTX_SETMAXNREG,
    ops.PTX_BARRIER_CLUSTER_ARRIVE,
    ops.PTX_BARRIER_CLUSTER_WAIT,
)
_NEXT_TURN = ("Continue", ops.CONTINUE_LOOP)
_LEAVES = (ops.BREAK_LOOP, ops.CONTINUE_LOOP, ops.THREAD_RETURN)


def _needs_program(statement: Any) -> bool:
    """Whether threads may part company in a statement: it synchronises, has while, or is left."""
    if isinstance(statement, tirx.BufferStore | tirx.Bind | tirx.AllocBuffer | tirx.DeclBuffer):
        return False
    if isinstance(statement, tirx.Evaluate):
        return isinstance(statement.value, ir.Call) and _parts(statement.value)
    jumps = nodes_in(statement, tirx.While, tirx.Break, tirx.Continue, tirx.Return)
    return bool(jumps) or any(map(_parts, nodes_in(statement, ir.Call)))


def _parts(call: Any) -> bool:
    name = op_name(call)
    if name in (*_LEAVES, ops.CUDA_CTA_SYNC, *_AWAITS):
        return True
    return name == ops.TVM_STORAGE_SYNC and str(call.args[0].value).startswith("shared")


class StatementCompiler(PlainCompiler):
    """Compiles a device function to instructions that paths of warps step through."""

    def compile(self, kernel: Any) -> list[MachineStep]:
        """Compile the body of a device function; the scope must hold its scalar parameters."""
        self.program: list[MachineStep] = []
        self._live: tuple[int, ...] = ()
        self._breaks: list[list[Jump]] = []
        self._continues: list[list[Jump]] = []
        self._returns: list[Jump] = []
        #: Where threads note which turn of their cluster's barrier they arrived at.
        self._arrived: int | None = None
        self.emit(kernel.body)
        self._target_here(self._returns)
        self._add(End())
        self.nvcc.finish()
        return self.program

    def _add(self, instruction: Any) -> Any:
        instruction.live = self._live
        self.program.append(instruction)
        return instruction

    def _target_here(self, jumps: list[Jump]) -> None:
        for jump in jumps:
            jump.target = len(self.program)

    def emit(self, statement: Any) -> None:
        """Add a statement to the program."""
        if isinstance(statement, tirx.SeqStmt):
            for part in statement.seq:
                self.emit(part)
            return
        if isinstance(statement, tirx.AttrStmt):
            self._emit_attribute(statement)
            return
        if not _needs_program(statement):
            run = self.plain(statement)
            if run is not None:
                self._add(RunInstruction(run))
            return
        emitter = _EMITTERS.get(type(statement).__name__)
        if emitter is None:
            raise NotModelled(
                f"The simulated GPU does not model {type(statement).__name__} around a barrier."
            )
        self.enter(statement)
        emitter(self, statement)

    def _emit_attribute(self, statement: Any) -> None:
        before, after = self.attribute(statement)
        if before is not None:
            self._add(RunInstruction(before))
        self.emit(statement.body)
        if after is not None:
            self._add(RunInstruction(after))

    def _emit_if(self, statement: Any) -> None:
        branch = self._add(Branch(self.expr(statement.condition), self.site("if")))
        with self.nvcc.branch():
            self.emit(statement.then_case)
        if statement.else_case is None:
            self._target_here([branch])
            return
        jump = self._add(Jump())
        self._target_here([branch])
        with self.nvcc.branch():
            self.emit(statement.else_case)
        self._target_here([jump])

    def _emit_for(self, statement: Any) -> None:
        slot = self.new_slot()
        dtype, _ = numpy_type(statement.loop_var)
        first, extent = self.expr(statement.min), self.expr(statement.extent)
        step = constant(dtype.type(step_of(statement)))
        rank = UNIFORM if first.rank in (LAUNCH, UNIFORM) and not first.taint else VARYING
        var = Code(lambda s, m: s.slots[slot], rank, first.taint)
        self.scope[handle(statement.loop_var)] = var
        end = lift(np.add, first, extent)
        self._add(RunInstruction(set_slot(slot, lift(lambda x: np.asarray(x, dtype)[()], first))))
        outer, self._live = self._live, (*self._live, slot)
        start = len(self.program)
        leave = self._add(Branch(lift(np.less, var, end), self.site("for")))
        self.loops.append((str(statement.loop_var.name), slot))
        with self.nvcc.loop(statement, slot):
            self._loop_body(statement.body)
        self.loops.pop()
        self._add(RunInstruction(set_slot(slot, lift(np.add, var, step))))
        self._close_loop(start, leave, None)
        self._live = outer

    def _loop_body(self, body: Any) -> None:
        self._breaks.append([])
        self._continues.append([])
        self.emit(body)
        self._target_here(self._continues.pop())

    def _close_loop(self, start: int, leave: Branch, endless: Site | None) -> None:
        self._add(Jump(start, endless=endless))
        self._target_here([leave, *self._breaks.pop()])  # type: ignore[list-item]

    def _emit_while(self, statement: Any) -> None:
        start = len(self.program)
        leave = self._add(Branch(self.expr(statement.condition), self.site("while")))
        with self.nvcc.loop(statement, 0):
            self._loop_body(statement.body)
        self._close_loop(start, leave, leave.site)

    def _emit_evaluate(self, statement: Any) -> None:
        name = op_name(statement.value)
        self.nvcc.call(statement.value)
        if name in (ops.CUDA_CTA_SYNC, ops.TVM_STORAGE_SYNC):
            self._add(Barrier(self.site("barrier")))
        elif name in _AWAITS:
            self._emit_await(name, statement.value)
        else:
            self._emit_leave(statement)

    def _emit_await(self, name: str, call: Any) -> None:
        site = self.site("barrier")
        if name == ops.PTX_SETMAXNREG:
            self._add(AwaitRegisters(int(call.args[0].value), site))
        elif name == ops.CUDA_MBARRIER_WAIT:
            storage, index = barrier_of(self, call.args[0])
            self._add(AwaitPhase(storage, index, self.expr(call.args[1]), site))
        elif name == ops.PTX_BARRIER_CLUSTER_ARRIVE:
            self._arrived = self.new_slot()
            self._add(RunInstruction(AwaitNamed(None, None, self._arrived, site).arrive))
        elif name == ops.PTX_BARRIER_CLUSTER_WAIT:
            if self._arrived is None:
                raise SimulationError(
                    f"barrier.cluster.wait at line {site.line} without barrier.cluster.arrive "
                    "before it."
                )
            self._add(AwaitNamed(None, None, self._arrived, site))
            self._arrived = None
        else:
            number, threads = (self.expr(one) for one in call.args[:2])
            step = AwaitNamed(number, threads, self.new_slot(), site)
            self._add(RunInstruction(step.arrive))
            self._add(step)

    def _emit_leave(self, statement: Any) -> None:
        """Jump out of a loop, to its next turn, or out of the kernel."""
        what = op_name(getattr(statement, "value", None)) or type(statement).__name__
        if what in ("Break", ops.BREAK_LOOP):
            jumps = self._breaks[-1]
        else:
            jumps = self._continues[-1] if what in _NEXT_TURN else self._returns
        jumps.append(self._add(Jump()))


_EMITTERS: dict[str, Callable[[StatementCompiler, Any], None]] = {
    "IfThenElse": StatementCompiler._emit_if,
    "For": StatementCompiler._emit_for,
    "While": StatementCompiler._emit_while,
    "Evaluate": StatementCompiler._emit_evaluate,
    **dict.fromkeys(("Break", "Continue", "Return"), StatementCompiler._emit_leave),
}
