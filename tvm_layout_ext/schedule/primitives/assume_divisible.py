"""``assume_divisible``: what a user knows of sizes, strides and base addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder

from ...analysis.assumptions import aligned, divisible, read_assumptions
from ...analysis.nest import element_bytes
from ...errors import LayoutError, ScheduleError
from ...ir import ops
from ...ir.rebuild import block_with, realize_with

#: Variables and tensors of TE that have a promise. TE has no statements to write one in.
_promised: list[tuple[Any, int]] = []


def assume_divisible(buffer_or_var: Any, divisor: int) -> Any:
    """Promise that a number or an address is a multiple of another number.

    A number counts as it is; of a buffer, the base address counts in bytes, as ``tt.divisibility``
    does in Triton. The vectors of ``auto_coalesce`` then need no guard of their own.

    Inside a TVMScript function a call is a statement, ``T.assume``, at its head. Outside it is for
    TE: the promise is written into every function that ``create_schedule`` or
    :func:`create_prim_func` makes of the variable or tensor. Lowering makes it a check on the host;
    of base addresses only a symbolic ``elem_offset`` can be checked there.

    Parameters
    ----------
    buffer_or_var : Var, Buffer or te.Tensor
        A size, stride or other integer variable of a function, or a buffer parameter.
    divisor : int
        At least 1. For a buffer it counts bytes and is a power of two.

    Examples
    --------
    >>> assume_divisible(te.var("n"), 16)
    T.assume(n % 16 == 0)
    """
    _check_divisor(buffer_or_var, divisor)
    in_script = IRBuilder.is_in_scope()
    if isinstance(buffer_or_var, te.Tensor):
        if in_script:
            raise LayoutError(
                f"{buffer_or_var.op.name} is a tensor of TE; inside TVMScript name the function's "
                "own buffer."
            )
        # Its buffer does not exist yet.
        _remember(buffer_or_var, divisor)
        buffer = tirx.decl_buffer(buffer_or_var.shape, buffer_or_var.dtype, buffer_or_var.op.name)
        return _assume(_base_condition(buffer, divisor))
    if _is_buffer(buffer_or_var):
        return _assume(_base_condition(buffer_or_var, divisor))
    if not in_script:
        _remember(buffer_or_var, divisor)
    return _assume(divisible(buffer_or_var, divisor))


def _is_buffer(value: Any) -> bool:
    return isinstance(value, tirx.Var) and hasattr(value.ty, "data_alignment")


def _check_divisor(promised: Any, divisor: int) -> None:
    if not isinstance(divisor, int) or isinstance(divisor, bool) or divisor < 1:
        raise LayoutError(f"assume_divisible needs a divisor of at least 1, not {divisor!r}.")
    if divisor >= 1 << 31:
        raise LayoutError(f"assume_divisible takes divisors below 2^31, not {divisor:,}.")
    if isinstance(promised, te.Tensor) or _is_buffer(promised):
        if divisor & (divisor - 1):
            raise LayoutError(f"Addresses are aligned to powers of two; {divisor} bytes is none.")
        return
    if not isinstance(promised, tirx.Var) or "int" not in str(promised.ty):
        raise LayoutError(
            f"assume_divisible takes an integer variable, a buffer or a tensor, not {promised}."
        )


def _base_condition(buffer: Any, divisor: int) -> Any:
    """Both parts of a base address: the pointer, and an offset that only callers know."""
    offset = buffer.ty.elem_offset
    elements = divisor // element_bytes(buffer)
    if isinstance(offset, tirx.Var) and elements > 1:
        return tirx.And(aligned(buffer, divisor), divisible(offset, elements))
    return aligned(buffer, divisor)


def _assume(condition: Any) -> Any:
    return tirx.call_intrin("bool", ops.ASSUME, condition)


def _remember(value: Any, divisor: int) -> None:
    if not any(old.same_as(value) and n == divisor for old, n in _promised):
        _promised.append((value, divisor))


def create_prim_func(ops: Sequence[Any], *args: Any, **kwargs: Any) -> tirx.PrimFunc:
    """Create a function of tensors as ``tvm.te.create_prim_func`` does, promises included."""
    listed = ops if isinstance(ops, list | tuple | tvm.ir.Array) else [ops]
    for one in listed:
        if not isinstance(one, te.Tensor | tirx.Var):
            raise ScheduleError(f"A function is made of tensors and variables, not of {one!r}.")
    return with_promises(te.create_prim_func(ops, *args, **kwargs), listed)


def with_promises(func: tirx.PrimFunc, args: Sequence[Any]) -> tirx.PrimFunc:
    """Write the promises about a function's variables and tensors at its head."""
    known = read_assumptions(func).conditions
    statements = []
    for value, divisor in _promised:
        condition = _condition_in(func, args, value, divisor)
        if condition is not None and not any(
            tvm_ffi.structural_equal(condition, old) for old in known
        ):
            statements.append(tirx.Evaluate(_assume(condition)))
    if not statements:
        return func
    root = func.body.block
    body = tirx.SeqStmt([*statements, root.body])
    return func.with_body(realize_with(func.body, block_with(root, body=body)))


def _condition_in(func: Any, args: Sequence[Any], value: Any, divisor: int) -> Any | None:
    """Write a promise in terms of a function, None where the function has no use of it."""
    if isinstance(value, te.Tensor):
        places = [i for i, arg in enumerate(args) if isinstance(arg, te.Tensor) and arg == value]
        return _base_condition(func.params[places[0]], divisor) if places else None
    used = any(var.same_as(value) for param in func.params for var in _variables(param))
    return divisible(value, divisor) if used else None


def _variables(param: Any) -> list[Any]:
    if not _is_buffer(param):
        return [param]
    parts = [*param.ty.shape, *param.ty.strides, param.ty.elem_offset]
    return [v for part in parts for v in tirx.analysis.undefined_vars(tvm.runtime.convert(part))]
