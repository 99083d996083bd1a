"""Rows of a buffer that the caller keeps, written in place."""

from __future__ import annotations

from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


def write_rows(
    builder: relax.BlockBuilder, buffer: relax.Expr, index: relax.Expr, rows: relax.Expr, dim: int
) -> relax.Var:
    """Emit ``buffer[.., index[j], ..] = rows[.., j, ..]`` along a dim, in place.

    A negative index counts from the end, as torch's does; one outside of the buffer writes nothing.

    Parameters
    ----------
    builder
        Where it is emitted.
    buffer, index, rows
        What is written to, whose value before nobody else reads; integers of one dim; and rows.
    dim
        The dim of ``buffer`` that ``index`` counts along.
    """
    func = _function(buffer.ty, index.ty, rows.ty, dim)
    name = builder.add_func(func, "write_rows")
    call = relax.op.call_tir_inplace(name, [buffer, index, rows], 0, buffer.ty)
    return builder.emit(call)


def _function(buffer: Any, index: Any, rows: Any, dim: int) -> tirx.PrimFunc:
    """The function of three tensors' types that writes each element of ``rows`` by itself."""
    extent = buffer.shape.values[dim]
    with IRBuilder() as made, T.prim_func(s_tir=True):
        T.func_name("write_rows")
        held, at, new = (
            T.arg(name, T.buffer([*one.shape.values], str(one.dtype)))
            for name, one in (("held", buffer), ("at", index), ("new", rows))
        )
        shape = [*rows.shape.values]
        with T.grid(*shape) as loops, T.sblock("write"):
            places = [T.axis.spatial(n, loop) for n, loop in zip(shape, [*loops], strict=True)]
            row = at[places[dim]]
            row = tirx.Select(row < 0, row + extent, row)
            there = [*places[:dim], row, *places[dim + 1 :]]
            with T.If(tirx.all(row >= 0, row < extent)), T.Then():
                T.buffer_store(held, new[tuple(places)], there)
    return made.get()
