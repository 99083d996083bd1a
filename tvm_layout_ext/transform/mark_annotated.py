"""Mark the functions that carry our annotations, and give them a target with true limits."""

from __future__ import annotations

from tvm import tirx
from tvm.s_tir import SBlock

from ..analysis.assumptions import read_assumptions
from ..ir.annotations import ANNOTATION_PREFIX, MARK, asks_for_something
from ..ir.queries import nodes_in
from ..target import better_than_guess
from .base import function_pass


def is_annotated(func: tirx.PrimFunc) -> bool:
    """Whether a function, or a block or loop inside it, carries one of our annotations."""
    keys = func.attrs.keys()  # Iterating attrs itself fails.
    if any(str(key).startswith(ANNOTATION_PREFIX) for key in keys):
        return True
    if read_assumptions(func).alignments:
        # TVM cannot lower what this package writes about addresses.
        return True
    nodes = nodes_in(func.body, SBlock, tirx.For)
    return any(asks_for_something(str(key)) for node in nodes for key in node.annotations)


@function_pass(everywhere=True)
def MarkAnnotated(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that marks functions with our annotations and gives them true limits.

    Runs first. Later passes of this package leave every function without the mark alone, which is
    what keeps TVM's code for them byte-identical. A target that is only TVM's guess for ``"cuda"``
    becomes :func:`tvm_layout_ext.default_target`.

    Does not handle: annotations inside attribute statements (nothing in this package writes any).
    """
    if not is_annotated(func):
        return func
    func = func.with_attr(MARK, 1)
    target = func.attrs.get("target", None)
    better = better_than_guess(target) if target is not None else None
    return func if better is None else func.with_attr("target", better)
