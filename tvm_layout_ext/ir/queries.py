"""Small questions that many ask of TIR's expressions and statements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import SBlock

from .._compat import look_through

COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE)
#: What computes with floats.
ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Min, tirx.Max)
#: A symbolic extent of a batch, for what depends on how many blocks there are.
USUAL_BATCH = 16


def size_of(extent: Any) -> Any:
    """An extent as an ``int``, if it is a number; a batch may have any size."""
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """Replace variables of an expression or statement; a plain number stays as it is."""
    if not values or not isinstance(node, tvm_ffi.Object):
        return node
    by_handle = {var.__chandle__(): value for var, value in values.items()}
    swap = (tirx.Var, lambda v: by_handle.get(v.__chandle__(), v))
    return tvm_ffi.structural_map(node, [swap], order="post")


def nodes_in(node: Any, *kinds: type) -> list[Any]:
    """List the nodes of some kinds in an expression or statement, those that hold others last."""
    found: list[Any] = []
    look_through(node, kinds, found.append)
    return found


def variables(node: Any) -> list[Any]:
    """List the variables and buffers of an expression or statement, repeats included."""
    return nodes_in(node, tirx.Var)


def uses(node: Any, var: Any) -> bool:
    """Whether a variable, or a buffer, occurs in an expression or statement."""
    return is_among(var, variables(node))


def depends_on(expr: Any, var: Any) -> bool:
    """Whether a value depends on a variable, which it does not bind itself."""
    return is_among(var, tirx.analysis.undefined_vars(expr))


def loads_in(node: Any) -> list[Any]:
    """List the loads of an expression or statement."""
    return nodes_in(node, tvm.ir.TensorLoad)


def nodes_of(func: Any) -> list[Any]:
    """List the expressions of a Relax function, those that hold others last; none of others."""
    found: list[Any] = []
    if isinstance(func, relax.Function):
        relax.analysis.post_order_visit(func, found.append)
    return found


def blocks_in(node: Any) -> list[Any]:
    """List the blocks of a statement, those that hold others after these."""
    return nodes_in(node, SBlock)


def op_name(expr: Any) -> str:
    """Name of the operator (:mod:`.ops`) that an expression calls; else nothing."""
    return str(getattr(expr.op, "name", "")) if isinstance(expr, tvm.ir.Call) else ""


def is_call_of(expr: Any, *names: str) -> bool:
    """Whether an expression is a call of one of TVM's operators."""
    return op_name(expr) in names


def is_pure(node: Any) -> bool:
    """Whether all calls in an expression or statement compute a value, and do nothing else."""
    called = [call.op for call in nodes_in(node, tvm.ir.Call)]
    kinds = [op.get_attr("TCallEffectKind") if isinstance(op, tvm.ir.Op) else None for op in called]
    most = int(tirx.CallEffectKind.Pure.value)
    return all(kind is not None and int(kind) <= most for kind in kinds)


def is_among(node: Any, others: Iterable[Any]) -> bool:
    """Whether a variable, a buffer or another node is one of some, as an object."""
    return any(node.same_as(other) for other in others)


def distinct(nodes: Iterable[Any]) -> list[Any]:
    """List nodes, each object once."""
    found: list[Any] = []
    for node in nodes:
        if not is_among(node, found):
            found.append(node)
    return found


def is_load_of(expr: Any, buffer: Any) -> bool:
    """Whether an expression is a load of a buffer."""
    return isinstance(expr, tvm.ir.TensorLoad) and bool(expr.source.same_as(buffer))


def is_global(buffer: Any) -> bool:
    """Whether a buffer is in global memory."""
    return buffer.scope() in ("", "global")


def is_number(expr: Any, value: int) -> bool:
    """Whether an expression is a literal of this value."""
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def are_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether as many expressions are the same, one by one."""
    pairs = zip(first, second, strict=False)
    return len(first) == len(second) and all(tvm_ffi.structural_equal(*pair) for pair in pairs)


def thread_tag(loop: Any) -> str:
    """``threadIdx.x``, ``blockIdx.y`` and so on; nothing for a loop that is not bound."""
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
