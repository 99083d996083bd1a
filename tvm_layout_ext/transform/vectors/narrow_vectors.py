"""Narrow vectors that the stride of a shared buffer would misalign."""

from __future__ import annotations

from math import gcd
from typing import Any

import tvm
from tvm import tirx

from ... import decisions
from ...ir.conditions import step_of
from ...ir.queries import depends_on, nodes_in, substitute
from ...ir.rebuild import loop_with
from ..base import function_pass, mapped, vector_loops

_NAME = "NarrowVectors"


def _width(buffer: Any, indices: Any, var: Any, lanes: int) -> int:
    """Elements that an access may take at once, as far as its buffer's strides tell."""
    strides = list(buffer.ty.strides)
    if not buffer.scope().startswith("shared") or not strides:
        return lanes
    analyzer = tvm.sym.Analyzer()
    *rows, column = indices
    if step_of(column, var) != 1 or any(depends_on(row, var) for row in rows):
        return lanes
    moving = [s for row, s in zip(rows, strides, strict=False) if not analyzer.can_prove(row == 0)]
    return gcd(lanes, *(int(stride) for stride in moving if isinstance(stride, tirx.IntImm)))


def _narrowed(loop: Any) -> Any:
    if loop.kind != tirx.ForKind.VECTORIZED or not isinstance(loop.extent, tirx.IntImm):
        return loop
    lanes, var = int(loop.extent), loop.loop_var
    widths: dict[str, int] = {}

    for node in nodes_in(loop.body, tvm.ir.TensorLoad, tirx.BufferStore):
        buffer = node.buffer if isinstance(node, tirx.BufferStore) else node.source
        width = _width(buffer, node.indices, var, lanes)
        widths[str(buffer.name)] = min(width, widths.get(str(buffer.name), lanes))
    width = gcd(lanes, *widths.values())
    if width == lanes:
        return loop
    worst = min(widths, key=lambda name: widths[name])
    text = f"vectors of {width}, not {lanes}, which its stride would misalign"
    decisions.note(_NAME, worst, text)
    part = tirx.Var(f"{var.name}_part", var.ty)
    lane = tirx.Var(var.name, var.ty)
    body = substitute(loop.body, {var: loop.min + part * width + lane})
    if width > 1:
        zero, extent = loop.min * 0, tirx.IntImm(str(loop.extent.ty), width)
        body = loop_with(loop, loop_var=lane, min=zero, extent=extent, body=body)
    else:
        body = substitute(body, {lane: loop.min * 0})
    return tirx.For(part, 0, lanes // width, tirx.ForKind.UNROLLED, body)


@function_pass()
def NarrowVectors(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that narrows vectors to what the stride of a shared buffer keeps aligned.

    TVM writes a vector as one access whatever its address; a misaligned one faults on the GPU::

        # before: rows 33 apart                # after
        for v in T.vectorized(4):              for p in T.unroll(4):
            S[i, c * 4 + v] = A[...]               S[i, c * 4 + p] = A[...]

    Leaves alone: buffers without strides of their own, vectors that do not run along the last dim,
    functions without an annotation of this package.
    """
    return mapped(func, (tirx.For, _narrowed)) if vector_loops(func) else func
