"""Small questions that many ask of TIR's expressions and statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock


def substitute(node: Any, values: Mapping[Any, Any]) -> Any:
    """Replace variables of an expression or statement; a plain number stays as it is."""
    if not values or not isinstance(node, tvm_ffi.Object):
        return node
    by_handle = {var.__chandle__(): value for var, value in values.items()}
    swap = (tirx.Var, lambda v: by_handle.get(v.__chandle__(), v))
    return tvm_ffi.structural_map(node, [swap], order="post")


def variables(node: Any) -> list[Any]:
    """List the variables and buffers of an expression or statement, repeats included."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(tirx.Var, found.append)])
    return found


def uses(node: Any, var: Any) -> bool:
    """Whether a variable, or a buffer, occurs in an expression or statement."""
    return any(one.same_as(var) for one in variables(node))


def depends_on(expr: Any, var: Any) -> bool:
    """Whether a value depends on a variable, which it does not bind itself."""
    return any(one.same_as(var) for one in tirx.analysis.undefined_vars(expr))


def loads_in(node: Any) -> list[Any]:
    """List the loads of an expression or statement."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(tvm.ir.TensorLoad, found.append)])
    return found


def blocks_in(node: Any) -> list[Any]:
    """List the blocks of a statement, those that hold others after these."""
    found: list[Any] = []
    tvm_ffi.structural_walk(node, [(SBlock, found.append)])
    return found


def is_load_of(expr: Any, buffer: Any) -> bool:
    """Whether an expression is a load of a buffer."""
    return isinstance(expr, tvm.ir.TensorLoad) and bool(expr.source.same_as(buffer))


def is_number(expr: Any, value: int) -> bool:
    """Whether an expression is a literal of this value.

    >>> is_number(tirx.IntImm("int64", 4), 4), is_number(tirx.Var("n", "int32"), 4)
    (True, False)
    """
    return isinstance(expr, tirx.IntImm) and int(expr) == value


def are_equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    """Whether as many expressions are the same, one by one."""
    pairs = zip(first, second, strict=True)
    return all(tvm_ffi.structural_equal(one, other) for one, other in pairs)


def thread_tag(loop: Any) -> str:
    """``threadIdx.x``, ``blockIdx.y`` and so on; nothing for a loop that is not bound."""
    return "" if loop.thread_binding is None else str(loop.thread_binding.thread_tag)
