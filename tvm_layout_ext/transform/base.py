"""The decorator that makes a pass, and lets functions through that do not ask for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock
from tvm_ffi import WalkResult

from ..ir.annotations import MARK

Rewrite = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def is_marked(func: Any) -> bool:
    """Whether this is a function with annotations of ours, as ``MarkAnnotated`` found."""
    return isinstance(func, tirx.PrimFunc) and func.attrs.get(MARK, None) is not None


def asks_for(func: tirx.PrimFunc, key: str) -> bool:
    """Whether a block, loop or attribute statement has an annotation that begins so."""
    found = False

    def look(keys: Any) -> Any:
        nonlocal found
        found = found or any(str(one).startswith(key) for one in keys)
        return WalkResult.SKIP if found else WalkResult.ADVANCE

    def annotated(node: Any) -> Any:
        return look(node.annotations)

    rules = [
        (SBlock, annotated),
        (tirx.For, annotated),
        (tirx.AttrStmt, lambda node: look([node.attr_key])),
    ]
    tvm_ffi.structural_walk(func.body, rules, order="pre")
    return found


def function_pass(
    name: str, *, asks: str = "", everywhere: bool = False
) -> Callable[[Rewrite], Any]:
    """Make a pass of what rewrites, or checks, one function.

    Functions without the mark ``layout_ext.annotated`` come back as the same objects: TVM's code
    for them stays what it is, byte for byte.

    Parameters
    ----------
    name : str
        Name of the pass, without ``tvm_layout_ext.``.
    asks : str
        Annotation without which a function is left alone, too.
    everywhere : bool
        Run on functions without the mark, too: for checks of what TVM would get wrong in any.
    """

    def made(rewrite: Rewrite) -> Any:
        @tirx.transform.prim_func_pass(opt_level=0, name=f"tvm_layout_ext.{name}")
        def run(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
            is_ours = everywhere or is_marked(func)
            return rewrite(func) if is_ours and (not asks or asks_for(func, asks)) else func

        return run

    return made
