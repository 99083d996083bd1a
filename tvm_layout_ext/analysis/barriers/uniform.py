"""Whether all threads of a block come to a barrier together, as far as thread indices tell."""

from __future__ import annotations

import numpy as np

from .program import Program
from .terms import UNKNOWN, Term


def divergent_barrier(program: Program) -> str:
    """The innermost condition or loop around a barrier on which threads do not agree."""
    for node in program.root.walk():
        if node.is_barrier:
            for around in node.ancestors():
                if any(_differs(term, program) for term in around.decisions):
                    return around.described()
    return ""


def _differs(term: Term, program: Program) -> bool:
    """Whether threads are known to see different values, or nothing tells that they do not."""
    if not term.varies or UNKNOWN in term.symbols:
        return False
    threads = (s for tag, s in program.symbols.items() if tag in program.threads)
    axes = [symbol for symbol in threads if symbol in term.symbols]
    if term.symbols != set(axes) or not all(symbol.extent for symbol in axes):
        return True
    grid = np.meshgrid(*(np.arange(symbol.extent) for symbol in axes), indexing="ij")
    # The lanes of a vector lie along the last axis.
    known = {symbol: index[..., None] for symbol, index in zip(axes, grid, strict=True)}
    value = term.value(known)
    lanes = value.reshape(-1, value.shape[-1])
    return bool((lanes != lanes[:1]).any())
