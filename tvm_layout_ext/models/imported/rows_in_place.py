"""Rows of a buffer, written in place where the caller keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T


def write_rows(
    builder: relax.BlockBuilder,
    buffer: relax.Expr,
    index: relax.Expr,
    rows: relax.Expr,
    dim: int,
    in_place: bool = True,
) -> relax.Var:
    """Emit ``buffer[.., index[j], ..] = rows[.., j, ..]`` along a dim.

    A negative index counts from the end, as torch's does; one outside of the buffer writes nothing.

    Parameters
    ----------
    builder
        Where it is emitted.
    buffer, index, rows
        What is written to; integers of one dim; and rows.
    dim
        The dim of ``buffer`` that ``index`` counts along.
    in_place
        Write to ``buffer``, whose value before nobody else reads; else to a copy.
    """
    func = _function(buffer.ty, index.ty, rows.ty, dim, in_place)
    # A module may have several, and names of others are taken as they are.
    name, given = builder.add_func(func, "write_rows"), [buffer, index, rows]
    if in_place:
        return builder.emit(relax.op.call_tir_inplace(name, given, 0, buffer.ty))
    return builder.emit(relax.call_tir(name, given, buffer.ty))


def _function(buffer: Any, index: Any, rows: Any, dim: int, in_place: bool) -> tirx.PrimFunc:
    """The function of three tensors' types that writes each element of ``rows`` by itself."""
    extent = buffer.shape.values[dim]
    names = [("held", buffer), ("at", index), ("new", rows), ("out", buffer)]
    with IRBuilder() as made, T.prim_func(s_tir=True):
        T.func_name("write_rows")
        held, at, new, *out = (
            T.arg(name, T.buffer([*one.shape.values], str(one.dtype)))
            for name, one in names[: 3 if in_place else 4]
        )
        if not in_place:
            with _places("copy", buffer.shape.values) as places:
                T.buffer_store(out[0], held[tuple(places)], places)
        with _places("write", rows.shape.values) as places:
            row = at[places[dim]]
            row = tirx.Select(row < 0, row + extent, row)
            there = [*places[:dim], row, *places[dim + 1 :]]
            with T.If(tirx.all(row >= 0, row < extent)), T.Then():
                T.buffer_store((out or [held])[0], new[tuple(places)], there)
    return made.get().without_attr("global_symbol")


@contextmanager
def _places(name: str, shape: Sequence[Any]) -> Iterator[list[Any]]:
    """A block, by its name, of one iteration for each place of a shape."""
    with T.grid(*shape) as loops, T.sblock(name):
        # Of one dim it is no list.
        variables = [loops] if len(shape) == 1 else [*loops]
        yield [T.axis.spatial(n, loop) for n, loop in zip(shape, variables, strict=True)]
