"""Gather what a schedule says about a launch where TVM's passes keep it: at the outermost loop."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import tirx

from ...ir.annotations import ANNOTATION_PREFIX
from ...ir.contents import contents
from ...ir.rebuild import loop_with, without_annotations
from ..base import function_pass


def _is_grid(loop: Any) -> bool:
    binding = loop.thread_binding
    return binding is not None and str(binding.thread_tag).startswith("blockIdx.")


def _own_keys(loop: Any) -> list[str]:
    return [str(key) for key in loop.annotations if str(key).startswith(ANNOTATION_PREFIX)]


def _is_noted_grid(loop: Any) -> bool:
    return _is_grid(loop) and bool(_own_keys(loop))


def _gathered(outermost: Any) -> Any:
    """The nest of a kernel, with our annotations of its grid loops at the first of them."""
    notes: dict[str, Any] = {}

    def strip(loop: Any) -> Any:
        own = _own_keys(loop)
        if not own or not _is_grid(loop):
            return loop
        notes.update({key: loop.annotations[key] for key in own})
        return without_annotations(loop, *own)

    body = tvm_ffi.structural_map(outermost.body, [(tirx.For, strip)], order="post")
    if not notes:
        return outermost
    kept = {str(key): value for key, value in outermost.annotations.items()}
    return loop_with(outermost, body=body, annotations={**notes, **kept})


@function_pass()
def HoistGridAnnotations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that moves our annotations of grid loops to the outermost one of a kernel.

    TVM's UnifyThreadBinding makes one chain of the bound loops of a kernel. It keeps the
    annotations of the first, and puts those of the others on the first loop that is left inside,
    one set over the other::

        for z in T.thread_binding(2, "blockIdx.z"):         # {rasterize: 8, cluster.x: 2}
            for y in T.thread_binding(4, "blockIdx.y"):     # {rasterize: 8}   -> {}
                for x in T.thread_binding(4, "blockIdx.x"): # {cluster.x: 2}   -> {}

    Does not handle: annotations of other packages, and of loops bound to ``threadIdx``.
    """
    if not any(map(_is_noted_grid, contents(func.body).nodes(tirx.For))):
        return func

    def visit(loop: Any, mutator: Any) -> Any:
        return _gathered(loop) if _is_grid(loop) else mutator.default_mutate(loop)

    return func.with_body(tvm_ffi.structural_mutate(func.body, [(tirx.For, visit)]))
