"""A pipeline with its last bodies peeled off, as TVM's own pass writes it, to compare with ours.

::

    for k in range(n):                    for k in range(n - depth):
        wait; barrier                         wait; barrier
        if k + depth < n: copy                copy
        compute                               compute
                                          for each of the last depth bodies:
                                              wait (for one group more each); barrier
                                              compute
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.script import tirx as T

from tvm_layout_ext.ir.queries import substitute

_COMMIT, _WAIT = "tirx.ptx.cp_async_commit_group", "tirx.ptx.cp_async_wait_group"


def peeled(mod: tvm.IRModule, depth: int) -> tvm.IRModule:
    """Take the last ``depth`` bodies off the pipelined loop of a lowered function."""
    (func,) = (f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc))
    seen: list[Any] = []

    def loop(node: Any, mutator: Any) -> Any:
        if not _is_pipeline(node):
            return mutator.default_mutate(node)
        seen.append(node)
        return _peeled(node, depth)

    body = tvm_ffi.structural_mutate(func.body, [(tirx.For, loop)])
    assert len(seen) == 1
    written = tvm.IRModule({"main": func.with_body(body)}, attrs=mod.attrs)
    return tirx.transform.ConvertSSA()(written)


def _is_pipeline(loop: Any) -> bool:
    """Whether a loop has a condition on its own variable: that of the copies."""
    found: list[Any] = []

    def look(branch: Any) -> None:
        used = tirx.analysis.undefined_vars(branch.condition)
        found.extend(var for var in used if var.same_as(loop.loop_var))

    tvm_ffi.structural_walk(loop.body, [(tirx.IfThenElse, look)])
    return bool(found) and loop.kind == tirx.ForKind.SERIAL


def _peeled(loop: Any, depth: int) -> Any:
    count = int(loop.extent)
    steady = count - depth
    assert steady > 0
    body = _decided(loop.body, loop.loop_var, tvm.ir.Range(0, steady))
    parts = [tirx.For(loop.loop_var, 0, steady, loop.kind, body, annotations=loop.annotations)]
    for number in range(depth):
        at = tirx.IntImm(str(loop.loop_var.ty.dtype), steady + number)
        one = substitute(loop.body, {loop.loop_var: at})
        parts.append(_last(_decided(one, None, None), number))
    return tirx.SeqStmt(parts)


def _decided(stmt: Any, var: Any, domain: Any) -> Any:
    """A statement without the conditions that are now always true, or never."""
    analyzer = tvm.sym.Analyzer()
    if var is not None:
        analyzer.bind(var, domain)

    def branch(node: Any) -> Any:
        condition = analyzer.simplify(node.condition)
        if isinstance(condition, tirx.IntImm):
            chosen = node.then_case if int(condition) else node.else_case
            return tirx.Evaluate(0) if chosen is None else chosen
        return node

    return tvm_ffi.structural_map(stmt, [(tirx.IfThenElse, branch)], order="post")


def _last(stmt: Any, number: int) -> Any:
    """The ``number``-th of the last bodies: no group to end, so waits leave one fewer each."""

    def group(node: Any) -> Any:
        call = node.value
        name = getattr(call.op, "name", "") if isinstance(call, ir.Call) else ""
        if name == _COMMIT:
            return tirx.Evaluate(0)
        if name == _WAIT:
            pending = max(0, int(call.args[0]) - number)
            return tirx.Evaluate(T.ptx["cp.async.wait_group"](pending))
        return node

    return tvm_ffi.structural_map(stmt, [(tirx.Evaluate, group)], order="post")


def statements(kernel: Any) -> int:
    """Statements of a kernel: stores, calls, lets, conditions and loops."""
    kinds = (tirx.BufferStore, tirx.Bind, tirx.IfThenElse, tirx.For)
    found: list[Any] = []
    calls: list[Any] = []
    tvm_ffi.structural_walk(kernel.body, [(kind, found.append) for kind in kinds])
    tvm_ffi.structural_walk(kernel.body, [(tirx.Evaluate, calls.append)])
    return len(found) + sum(isinstance(one.value, ir.Call) for one in calls)
