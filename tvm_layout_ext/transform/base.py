"""The decorator that makes a pass, and lets functions through that do not ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import SBlock

from ..ir.annotations import MARK
from ..ir.contents import contents

Rewrite = Callable[[tirx.PrimFunc], tirx.PrimFunc]


def is_marked(func: Any) -> bool:
    """Whether this is a function with annotations of ours, as ``MarkAnnotated`` found."""
    return isinstance(func, tirx.PrimFunc) and func.attrs.get(MARK, None) is not None


def allocates_nothing(func: Any) -> bool:
    """Whether an annotated function's blocks leave on-chip memory to kernels written as such."""
    if not is_marked(func):
        return False
    made = (one for block in contents(func.body).nodes(SBlock) for one in block.alloc_buffers)
    return all(one.scope() == "global" for one in made)


def all_but(stock: Any, leaves: Callable[[Any], bool]) -> Any:
    """Wrap a pass of TVM so that it leaves some functions alone."""

    @tvm.transform.module_pass(opt_level=0, name=str(stock.info.name))
    def rest(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        ours = {gv: func for gv, func in mod.functions.items() if leaves(func)}
        if not ours:
            return stock(mod)
        others = {gv: func for gv, func in mod.functions.items() if gv not in ours}
        done = stock(tvm.IRModule(others, attrs=mod.attrs)) if others else mod
        done.update(tvm.IRModule(ours))
        return done

    return rest


def asks_for(func: tirx.PrimFunc, key: str) -> bool:
    """Whether a block, loop or attribute statement has an annotation that begins so."""
    return any(one.startswith(key) for one in contents(func.body).annotations)


def has_call(func: tirx.PrimFunc, names: Iterable[str]) -> bool:
    """Whether a function calls one of some operators."""
    return not contents(func.body).calls.isdisjoint(names)


def vector_loops(func: tirx.PrimFunc) -> list[Any]:
    """List the loops of a function that become vectors."""
    loops = contents(func.body).nodes(tirx.For)
    return [loop for loop in loops if loop.kind == tirx.ForKind.VECTORIZED]


def mapped(func: tirx.PrimFunc, *rules: Any) -> tirx.PrimFunc:
    """A function with its body rewritten by rules (kind of node, what becomes of it)."""
    body = tvm_ffi.structural_map(func.body, rules, order="post")
    return func if body.same_as(func.body) else func.with_body(body)


def simplified(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """A function as TVM's StmtSimplify leaves it."""
    mod = tirx.transform.StmtSimplify()(tvm.IRModule.from_expr(func))
    return next(iter(mod.functions.values()))


def function_pass(
    *, asks: str = "", calls: Sequence[str] = (), everywhere: bool = False
) -> Callable[[Rewrite], Any]:
    """Make of what rewrites, or checks, one function what creates a pass of its name.

    Functions without the mark ``layout_ext.annotated`` come back as the same objects, so that TVM's
    code for them stays what it is, and so do those without the annotation that it ``asks`` for, or
    without any of the ``calls`` that it is about; ``everywhere`` is for checks of what TVM would
    get wrong in any.
    """

    def made(rewrite: Rewrite) -> Any:
        @tirx.transform.prim_func_pass(opt_level=0, name=f"tvm_layout_ext.{rewrite.__name__}")
        def run(func: tirx.PrimFunc, _mod: Any, _ctx: Any) -> tirx.PrimFunc:
            is_ours = (everywhere or is_marked(func)) and (not asks or asks_for(func, asks))
            return rewrite(func) if is_ours and (not calls or has_call(func, calls)) else func

        return named_like(rewrite, lambda: run)

    return made


def named_like(rewrite: Callable[..., Any], create: Callable[[], Any]) -> Callable[[], Any]:
    """Give what creates a pass the name and the docstring of what the pass does."""
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(create, name, getattr(rewrite, name))
    return create
