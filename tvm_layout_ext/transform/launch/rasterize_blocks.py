"""Renumber the blocks of a kernel so that they run in groups of rows."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ... import decisions
from ...ir.annotations import RASTERIZE
from ...ir.queries import nodes_in, size_of, substitute, thread_tag
from ...ir.rebuild import loop_with, without_annotations
from ..base import function_pass, mapped

_NAME = "RasterizeBlocks"


def grouped(row: Any, column: Any, rows: Any, columns: Any, group: int) -> tuple[Any, Any]:
    """Row and column of the tile of the block launched there; the last group may be low.

    Where none is, nothing divides by what only the kernel knows.
    """
    number, rows = row * columns + column, size_of(rows)
    first = number // (group * columns) * group
    height: Any = group
    if not isinstance(rows, int) or rows % group:
        left = rows - first
        height = min(left, group) if isinstance(left, int) else tirx.min(left, group)
    inside = number % (group * columns)
    return first + inside % height, inside // height


def _grid_axis(body: Any, tag: str) -> Any | None:
    return next((loop for loop in nodes_in(body, tirx.For) if thread_tag(loop) == tag), None)


def _rasterized(outer: Any, inner: Any, group: int) -> Any:
    """The outer of the two loops, in which the inner one's body works on other tiles."""
    rows, columns = (outer, inner) if thread_tag(outer) == "blockIdx.y" else (inner, outer)
    row, column = (tirx.Var(f"{v.name}_tile", v.ty) for v in (rows.loop_var, columns.loop_var))
    values = grouped(rows.loop_var, columns.loop_var, rows.extent, columns.extent, group)
    moved = substitute(inner.body, {rows.loop_var: row, columns.loop_var: column})
    binds = [tirx.Bind(var, value) for var, value in zip((row, column), values, strict=True)]
    body = loop_with(inner, body=tirx.SeqStmt([*binds, moved]))
    swap = (tirx.For, lambda loop: body if loop.loop_var.same_as(inner.loop_var) else loop)
    changed = tvm_ffi.structural_map(outer.body, [swap], order="post")
    return loop_with(outer, body=changed)


def _rasterize(loop: Any) -> Any:
    """Rewrite the nest of the loop that carries the annotation, the outermost of a kernel."""
    group = loop.annotations.get(RASTERIZE, None)
    if group is None:
        return loop
    rows, columns = (_grid_axis(loop, f"blockIdx.{axis}") for axis in "yx")
    if rows is None or columns is None:
        return without_annotations(loop, RASTERIZE)
    decisions.note(_NAME, "grid", f"blocks run in groups of {int(group)} rows")
    outer, inner = (rows, columns) if _grid_axis(rows.body, "blockIdx.x") else (columns, rows)
    nest = _rasterized(outer, inner, int(group))
    swap = (tirx.For, lambda one: nest if one.loop_var.same_as(outer.loop_var) else one)
    whole = nest if outer.same_as(loop) else tvm_ffi.structural_map(loop, [swap], order="post")
    return without_annotations(whole, RASTERIZE)


@function_pass(asks=RASTERIZE)
def RasterizeBlocks(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that renumbers the blocks of kernels whose schedule asked for it.

    The outermost loop of a kernel carries annotation ``layout_ext.rasterize`` = rows of a group.
    The block launched as number n then works on the tile that :func:`grouped` names. Runs after all
    passes that look at regions, whose indices so stay affine.

    Does not handle: grids of one dim, and ``blockIdx.z``, whose slices follow each other as before.
    """
    return mapped(func, (tirx.For, _rasterize))
