"""Tensors of the stages that ``cache_read``, ``cache_write`` and ``rfactor`` create."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm_ffi
from tvm import te, tirx
from tvm.te import _ffi_api
from tvm.tirx import IterVar

from ...ir.queries import substitute
from .records import new_axis


def _compute_op(like: te.Operation, name: str, axes: Sequence[IterVar], body: Any) -> te.Operation:
    return _ffi_api.ComputeOp(name, like.tag, like.attrs, list(axes), body)


def copy_of(tensor: te.Tensor, scope: str) -> te.Tensor:
    """A tensor that reads ``tensor`` element by element, with axes of its own."""
    names = [f"ax{dim}" for dim in range(len(tensor.shape))]
    return te.compute(
        tensor.shape, lambda *i: tensor(*i), name=f"{tensor.name}.{scope}", varargs_names=names
    )


def shadow_of(op: te.Operation, scope: str) -> tuple[te.Tensor, te.Operation]:
    """The tensor that computes, and reduces, what ``op`` did, and the copy ``op`` becomes."""
    axes = [new_axis(f"{axis.var.name}.c", False, axis.dom) for axis in op.axis]
    fresh = {old.var: new.var for old, new in zip(op.axis, axes, strict=True)}
    body = [substitute(value, fresh) for value in op.body]
    cache = _compute_op(op, f"{op.name}.{scope}", axes, body).output(0)
    indices = [axis.var for axis in op.axis]
    return cache, _compute_op(op, op.name, op.axis, [cache(*indices)])


def partial_of(
    op: te.Operation,
    factor: IterVar,
    factor_axis: int,
    rest: Sequence[IterVar],
    index: dict[Any, Any],
) -> tuple[te.Operation, te.Operation]:
    """The operation of partial results, and the reduction over them that ``op`` becomes.

    ``index`` has the values there of old reduction variables.
    """
    reduce = op.body[0]
    axes = [new_axis(axis.var.name, False, axis.dom) for axis in op.axis]
    values = {old.var: new.var for old, new in zip(op.axis, axes, strict=True)} | index
    source = [substitute(value, values) for value in reduce.source]
    body = _reduced(reduce, source, substitute(reduce.condition, values), rest)
    axes.insert(factor_axis, factor)
    partial = _compute_op(op, f"{op.name}.rf", axes, body)
    again = new_axis(f"{factor.var.name}.v", True, factor.dom)
    indices = [axis.var for axis in op.axis]
    indices.insert(factor_axis, again.var)
    sources = [partial.output(i)(*indices) for i in range(op.num_outputs)]
    combined = _reduced(reduce, sources, tirx.const(True, "bool"), [again])
    return partial, _compute_op(op, op.name, op.axis, combined)


def _reduced(reduce: Any, source: list[Any], condition: Any, axes: Sequence[IterVar]) -> list[Any]:
    if not axes:
        return source
    # The outputs of one reduction must share these arrays, not only be equal.
    sources, loops = tvm_ffi.convert(source), tvm_ffi.convert(list(axes))
    return [
        tirx.Reduce(reduce.combiner, sources, loops, condition, index)
        for index in range(len(source))
    ]
