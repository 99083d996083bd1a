"""Whether all threads of a block come to a barrier together, or only some of them.

What is the same for all threads: numbers, parameters, block indices, loops of such bounds, what
is loaded from a place that is the same from memory that nothing writes, or from shared memory
(where two threads may not see different values without a race), registers into which all threads
always put the same, and what is computed from these. A condition on thread indices alone is
evaluated for every thread: ``threadIdx.x // 256 == 0`` is the same for 256 of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from ...ir import ops
from ...ir.index_terms import Scope, Symbol, Term, Uncertain, term_of
from ...ir.pointers import OPAQUE

__all__ = ["divergent_barrier"]

_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
_BARRIERS = (ops.CUDA_CTA_SYNC, ops.CUDA_SYNCTHREADS_AND, ops.CUDA_SYNCTHREADS_OR)
_STORAGE_SYNC = ops.TVM_STORAGE_SYNC
_JUMPS = (ops.BREAK_LOOP, ops.CONTINUE_LOOP)


class _UniformityWalk:
    """One walk through a kernel, with what is taken to be the same for all threads.

    Attributes
    ----------
    alike : set of int
        Buffers that all threads load the same from, at the same place.
    apart : set of int
        Loops that only some threads leave, or go on with, early.
    unlike, left : set of int
        Registers and loops for which this walk found that to be wrong, or so.
    found : str
        Condition around the first barrier that only some threads come to; empty for none.
    """

    def __init__(self, alike: set[int], apart: set[int]) -> None:
        self.alike, self.apart = alike, apart
        self.unlike: set[int] = set()
        self.left: set[int] = set()
        self.found = ""
        self.scope = Scope()
        self.threads: dict[str, Symbol] = {}
        self.varying: set[int] = set()
        self.around: list[str] = []
        self.loops: list[int] = []

    def statement(self, stmt: Any) -> None:
        """Visit a statement."""
        if isinstance(stmt, tirx.SeqStmt):
            for one in stmt.seq:
                self.statement(one)
        elif isinstance(stmt, tirx.Bind):
            self._bind(stmt.var, stmt.value)
        elif isinstance(stmt, tirx.AttrStmt):
            if str(stmt.attr_key) == "thread_extent":
                self._thread(stmt)
            self.statement(stmt.body)
        elif isinstance(stmt, tirx.IfThenElse):
            with self._under(self.varies(stmt.condition), f"if {stmt.condition}"):
                self.statement(stmt.then_case)
                if stmt.else_case is not None:
                    self.statement(stmt.else_case)
        elif isinstance(stmt, tirx.For | tirx.While):
            self._loop(stmt)
        elif isinstance(stmt, tirx.BufferStore):
            inside = [stmt.value, *stmt.indices]
            if self.around or any(map(self.varies, inside)):
                self.unlike.add(stmt.buffer.__chandle__())
        elif isinstance(stmt, tirx.Evaluate):
            self._evaluate(stmt.value)

    def _bind(self, var: Any, value: Any) -> None:
        if self.varies(value):
            self.varying.add(var.__chandle__())
            self.scope = self.scope.having(var, term_of(value, self.scope))

    def _thread(self, stmt: Any) -> None:
        tag = str(stmt.node.thread_tag)
        extent = int(stmt.value) if isinstance(stmt.value, tirx.IntImm) else 0
        if tag in _THREADS and extent != 1:
            symbol = self.threads.setdefault(tag, Symbol(tag, tag, True, extent))
            self.varying.add(stmt.node.var.__chandle__())
            self.scope = self.scope.having(stmt.node.var, Term("symbol", leaf=symbol))

    def _loop(self, stmt: Any) -> None:
        if isinstance(stmt, tirx.While):
            differs, told = self.varies(stmt.condition), f"while {stmt.condition}"
        else:
            differs = self.varies(stmt.min) or self.varies(stmt.extent)
            told = f"loop {stmt.loop_var.name} of {stmt.extent} iterations"
            if differs:
                self.varying.add(stmt.loop_var.__chandle__())
        if stmt.__chandle__() in self.apart:
            differs, told = True, f"{told}, which only some threads leave early"
        self.loops.append(stmt.__chandle__())
        with self._under(differs, told):
            self.statement(stmt.body)
        self.loops.pop()

    def _evaluate(self, call: Any) -> None:
        name = str(getattr(getattr(call, "op", None), "name", ""))
        if name in _JUMPS and self.around and self.loops:
            self.left.add(self.loops[-1])
        if self.around and not self.found and _is_barrier(name, call):
            self.found = self.around[-1]

    @contextmanager
    def _under(self, differs: bool, told: str) -> Iterator[None]:
        self.around += [told] if differs else []
        yield
        if differs:
            self.around.pop()

    def varies(self, expr: Any) -> bool:
        """Whether threads of a block may see different values of an expression."""
        return self._depends(expr) and not self._is_constant_over_threads(expr)

    def _depends(self, expr: Any) -> bool:
        """Whether anything in an expression may differ."""
        differs = False

        def look(one: Any) -> Any:
            nonlocal differs
            if isinstance(one, tirx.Var):
                differs = differs or one.__chandle__() in self.varying
            elif isinstance(one, tvm.ir.Call):
                if str(getattr(one.op, "name", "")) in _BARRIERS:
                    return tvm_ffi.WalkResult.SKIP  # it gives all threads the same
                differs = differs or not _is_function(one)
            elif not one.source.scope().startswith("shared"):
                differs = differs or one.source.__chandle__() not in self.alike
            return None

        kinds = (tirx.Var, tvm.ir.Call, tvm.ir.TensorLoad)
        tvm_ffi.structural_walk(expr, [(kind, look) for kind in kinds], order="pre")
        return differs

    def _is_constant_over_threads(self, expr: Any) -> bool:
        term = term_of(expr, self.scope)
        axes = {tag: symbol for tag, symbol in self.threads.items() if symbol in term.symbols}
        if set(term.symbols) != set(axes.values()) or not all(s.extent for s in axes.values()):
            return False
        grid = np.meshgrid(*(np.arange(s.extent) for s in axes.values()), indexing="ij")
        # The lanes of a vector lie along an axis before those of the threads.
        known = {axis: index[None] for axis, index in zip(axes.values(), grid, strict=True)}
        try:
            values = np.asarray(term.value(known))
        except Uncertain:
            return False
        lanes = values.reshape(len(values), -1) if values.ndim else values.reshape(1, 1)
        return bool((lanes == lanes[:, :1]).all())


def _is_function(call: Any) -> bool:
    """Whether a call gives the same for the same arguments."""
    kind = call.op.get_attr("TCallEffectKind") if isinstance(call.op, tvm.ir.Op) else None
    return kind is not None and int(kind) <= int(tirx.CallEffectKind.Pure.value)


def _is_barrier(name: str, call: Any) -> bool:
    if name == _STORAGE_SYNC:
        return str(call.args[0].value).startswith("shared")
    return name in _BARRIERS


def _own_registers(kernel: Any) -> set[int]:
    """Buffers of each thread that only loads and stores touch."""
    found: set[int] = set()

    def allocate(stmt: Any) -> None:
        if stmt.buffer.scope() == "local":
            found.add(stmt.buffer.__chandle__())

    def address(call: Any) -> None:
        if getattr(call.op, "name", "") in OPAQUE:
            sources = [getattr(argument, "source", argument) for argument in call.args]
            found.difference_update(s.__chandle__() for s in sources if isinstance(s, tirx.Var))

    tvm_ffi.structural_walk(kernel, [(tirx.AllocBuffer, allocate)])
    tvm_ffi.structural_walk(kernel, [(tvm.ir.Call, address)])
    return found


def divergent_barrier(kernel: Any, read_only: frozenset[int]) -> str:
    """Find a barrier that only some threads of a block come to.

    Parameters
    ----------
    kernel : Stmt
        Its outermost ``thread_extent``, in flat TIR.
    read_only : frozenset of int
        Global buffers that nothing writes, by ``__chandle__()``.

    Returns
    -------
    str
        The innermost condition or loop around it that threads may not agree on, as TIR prints it;
        empty if there is no such barrier.
    """
    registers, apart = _own_registers(kernel), set[int]()
    while True:
        walk = _UniformityWalk(registers | read_only, apart)
        walk.statement(kernel)
        if registers.isdisjoint(walk.unlike) and walk.left <= apart:
            return walk.found
        registers -= walk.unlike
        apart |= walk.left
