"""Axis information through statements: values carried round loops, joined after branches, let.

TIR carries no values round its loops; programs keep them in buffers of one element, a *cell*, that
belong to the thread::

    k = T.alloc_buffer((1,), "int32", scope="local")
    k[0] = 0
    for step in range(8):
        A[k[0] + lane]        # k[0] is a multiple of 16 in every round
        k[0] = k[0] + 16

The body of a loop is followed until what its cells hold no longer changes: what enters the loop is
joined with what leaves the body. Claims compare the same round of every loop, and speak of those
elements for which the statement runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

from ..errors import LayoutError
from .axis_info import AxisInfo, apply_binary, join, splat
from .index_info import IndexAnalyzer
from .index_types import is_integer

__all__ = ["FoundAccess", "follow"]

State = dict[Any, AxisInfo]


@dataclass(frozen=True)
class FoundAccess:
    """A load or store with what its indices are when it runs.

    Attributes
    ----------
    buffer : Buffer
        What is accessed.
    kind : str
        ``load`` or ``store``.
    indices : tuple of AxisInfo
        One a dim, along the axes of the analyser.
    """

    buffer: Any
    kind: str
    indices: tuple[AxisInfo, ...]


def follow(body: Any, analyzer: IndexAnalyzer) -> list[FoundAccess]:
    """Describe every access of a statement, in the order of the program.

    Accesses to cells are not listed; what they hold is in the indices of the others.

    Parameters
    ----------
    body : Stmt
        What runs while the axes of the analyser stand still.
    analyzer : IndexAnalyzer
        Knows the axes and ranges of the variables from outside.

    Raises
    ------
    LayoutError
        If a loop of the statement runs over an axis, or control jumps out of a loop.

    Examples
    --------
    >>> lane, k = tirx.Var("lane", "int32"), tirx.decl_buffer((1,), "int32", scope="local")
    >>> A = tirx.decl_buffer((4096,), "float32", name="A")
    >>> once = tirx.SeqStmt([
    ...     tirx.BufferStore(A, 0.0, [k[0] + lane]),
    ...     tirx.BufferStore(k, k[0] + 16, [0])])
    >>> loop = tirx.For(tirx.Var("s", "int32"), 0, 8, tirx.ForKind.SERIAL, once)
    >>> start = tirx.BufferStore(k, tirx.IntImm("int32", 0), [0])
    >>> found = follow(tirx.SeqStmt([start, loop]), IndexAnalyzer([(lane, tvm.ir.Range(0, 64))]))
    >>> found[0].indices[0].contiguity
    (16,)
    """
    flow = _Flow(analyzer, _shared(body), _stored(body))
    flow.run(body)
    return flow.found


def _shared(body: Any) -> list[Any]:
    """Buffers whose address is taken or renamed: others may write them."""
    found: list[Any] = []

    def look(call: Any) -> None:
        for arg in call.args:
            source = arg.source if isinstance(arg, tvm.ir.TensorLoad) else arg
            taken = getattr(call.op, "name", "") == "tirx.address_of" or source is arg
            if taken and hasattr(getattr(source, "ty", None), "data_alignment"):
                found.append(source)

    def rename(block: Any) -> None:
        for match in block.match_buffers:
            found.extend([match.buffer, match.source.buffer])

    tvm_ffi.structural_walk(body, [(tvm.ir.Call, look), (s_tir.SBlock, rename)])
    return found


def _stored(body: Any) -> list[Any]:
    found: list[Any] = []
    look = (tirx.BufferStore, lambda store: found.append(store.buffer))
    tvm_ffi.structural_walk(body, [look])
    return found


class _Flow:
    def __init__(self, analyzer: IndexAnalyzer, shared: list[Any], stored: list[Any]) -> None:
        self.analyzer = analyzer
        self.found: list[FoundAccess] = []
        self.state: State = {}
        self._shared = shared
        self._quiet = False
        self._rank = len(analyzer.shape)
        # Elements may meet memory that changes at different times.
        changing = [b for b in [*shared, *stored] if not self.is_cell(b)]
        self._changing = dict.fromkeys(changing, AxisInfo.unknown(self._rank))
        self.set({})

    def run(self, statement: Any) -> None:
        handler = _HANDLERS.get(type(statement).__name__)
        if handler is None:
            raise LayoutError(
                f"Statement {type(statement).__name__} cannot be followed; control must leave a "
                "loop at its end."
            )
        handler(self, statement)

    def set(self, state: State) -> None:
        self.state = dict(state)
        self.analyzer.set_cells({**self._changing, **self.state})

    def is_cell(self, buffer: Any) -> bool:
        alone = all(isinstance(n, tirx.IntImm) and int(n) == 1 for n in buffer.shape)
        mine = str(buffer.scope()).startswith("local")
        return alone and mine and not any(buffer.same_as(other) for other in self._shared)

    # Expressions

    def value(self, expr: Any) -> AxisInfo:
        """Describe a value, and list the loads in it."""

        def learn(let: Any) -> None:
            self.analyzer.info(let)

        # Outer lets first: inner ones use them.
        tvm_ffi.structural_walk(expr, [(tirx.Let, learn)], order="pre")
        info = AxisInfo.unknown(self._rank)
        if is_integer(expr):
            info = self.analyzer.info(expr)
        tvm_ffi.structural_walk(expr, [(tvm.ir.TensorLoad, self._load)])
        return info

    def _load(self, load: Any) -> None:
        if not self.is_cell(load.source):
            self._list(load.source, "load", load.indices)

    def _list(self, buffer: Any, kind: str, indices: Any) -> None:
        if not self._quiet:
            infos = tuple(self.analyzer.info(index) for index in indices)
            self.found.append(FoundAccess(buffer, kind, infos))

    # Statements

    def sequence(self, statement: Any) -> None:
        for part in statement.seq:
            self.run(part)

    def store(self, statement: Any) -> None:
        info = self.value(statement.value)
        for index in statement.indices:
            self.value(index)
        if not self.is_cell(statement.buffer):
            self._list(statement.buffer, "store", statement.indices)
            return
        self.set({**self.state, statement.buffer: info})

    def let(self, statement: Any) -> None:
        self.analyzer.learn(statement.var, self.value(statement.value))

    def evaluate(self, statement: Any) -> None:
        self.value(statement.value)

    def check(self, statement: Any) -> None:
        self.value(statement.condition)

    def allocate(self, statement: Any) -> None:
        self.state.pop(statement.buffer, None)
        self.set(self.state)

    def inside(self, statement: Any) -> None:
        node = statement.node
        if isinstance(node, tirx.IterVar) and node.var not in self.analyzer.axes:
            bounds = tvm.ir.Range.from_min_extent(0, statement.value)
            self.analyzer.learn(node.var, splat(AxisInfo.argument(), self.analyzer.shape), bounds)
        self.run(statement.body)

    def branch(self, statement: Any) -> None:
        condition = self.value(statement.condition)
        before = self.state
        self.run(statement.then_case)
        after = self.state
        self.set(before)
        if statement.else_case is not None:
            self.run(statement.else_case)
        self.set(self._merge(condition, after, self.state))

    def _merge(self, condition: AxisInfo, left: State, right: State) -> State:
        unknown = AxisInfo.unknown(self._rank)
        return {
            cell: self.analyzer.chosen(condition, left.get(cell, unknown), right.get(cell, unknown))
            for cell in {**left, **right}
        }

    def block(self, statement: Any) -> None:
        block = statement.block
        for variable, value in zip(block.iter_vars, statement.iter_values, strict=True):
            self.analyzer.learn(variable.var, self.value(value), variable.dom)
        for buffer in block.alloc_buffers:
            self.state.pop(buffer, None)
        self.set(self.state)
        condition = self.value(statement.predicate)
        before = self.state
        if block.init is not None:
            self.run(block.init)
            self.set(self._merge(AxisInfo.unknown(self._rank), self.state, before))
        self.run(block.body)
        self.set(self._merge(condition, self.state, before))

    def loop(self, statement: Any) -> None:
        variable = statement.loop_var
        if variable in self.analyzer.axes:
            raise LayoutError(
                f"Loop {variable.name} runs over an axis of the analysis; follow its body."
            )
        start, extent = self.value(statement.min), self.value(statement.extent)
        step = statement.step
        rounds = splat(AxisInfo.argument(), self.analyzer.shape)
        one_by_one = step is None or (isinstance(step, tirx.IntImm) and int(step) == 1)
        if not one_by_one:
            width = self.value(step)
            rounds = apply_binary("mul", rounds, width, self.analyzer.shape, "tir")
        bounds = None
        if one_by_one:
            bounds = tvm.ir.Range.from_min_extent(statement.min, statement.extent)
        info = apply_binary("add", start, rounds, self.analyzer.shape, "tir")
        self.analyzer.learn(variable, info, bounds)
        self._repeat(
            lambda: self.run(statement.body),
            # A step may vary along an axis, too; then rounds end at different times.
            lambda: all(self._is_uniform(i) for i in (start, extent, rounds)),
        )

    def repeat_while(self, statement: Any) -> None:
        def once() -> None:
            self.value(statement.condition)
            self.run(statement.body)

        self._repeat(once, lambda: self._is_uniform(self.analyzer.info(statement.condition)))

    def _is_uniform(self, info: AxisInfo) -> bool:
        return prod(info.constancy) == prod(self.analyzer.shape)

    def _repeat(self, once: Callable[[], None], is_uniform: Callable[[], bool]) -> None:
        """Run a body until nothing new is found, then once more to list its accesses."""
        outer, self._quiet = self._quiet, True
        entering = self.state
        while True:
            self.set(entering)
            once()
            joined = {
                cell: join(info, self.state[cell]) if cell in self.state else info
                for cell, info in entering.items()
            }
            if joined == entering:
                break
            entering = joined
        self._quiet = outer
        self.set(entering)
        once()
        self.set(entering)
        if not is_uniform():
            # Elements that leave in different rounds share only what holds in every round.
            self.set({cell: _in_any_round(info) for cell, info in entering.items()})


def _in_any_round(info: AxisInfo) -> AxisInfo:
    if info.constant is not None:
        return info
    ones = (1,) * info.rank
    return AxisInfo(ones, (info.divisor_of_all,) * info.rank, ones)


_HANDLERS: dict[str, Callable[[_Flow, Any], None]] = {
    "SeqStmt": _Flow.sequence,
    "BufferStore": _Flow.store,
    "Bind": _Flow.let,
    "Evaluate": _Flow.evaluate,
    "AssertStmt": _Flow.check,
    "AllocBuffer": _Flow.allocate,
    "DeclBuffer": _Flow.allocate,
    "AttrStmt": _Flow.inside,
    "IfThenElse": _Flow.branch,
    "SBlockRealize": _Flow.block,
    "For": _Flow.loop,
    "While": _Flow.repeat_while,
}
