"""Why a product of a function is not put on tensor cores, in one sentence."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from ...analysis.contraction import read_contraction, term_of
from ...errors import LayoutExtError
from ...gpu.hardware import architecture
from ...intrin import choose
from ...target import target_arch
from .functions import blocks_of


def off_tensor_cores(func: tirx.PrimFunc) -> dict[str, str]:
    """Products that tensor cores cannot take, by block; sums of squares are none."""
    found = {}
    for _, block in blocks_of(func):
        if not is_product(block):
            continue
        try:
            what = read_contraction(block)
            gpu = architecture(target_arch(func))
            choose("auto", what.operand, what.sums, gpu, tf32=what.tf32)
        except LayoutExtError as error:
            found[str(block.name_hint)] = str(error)
    return found


def is_product(block: Any) -> bool:
    """Whether a block sums up products of two buffers."""
    term = term_of(block, tirx.Add)
    if not isinstance(term, tirx.Mul):
        return False
    factors = (one.value if isinstance(one, tirx.Cast) else one for one in (term.a, term.b))
    buffers: list[Any] = [getattr(one, "source", None) for one in factors]
    return all(one is not None for one in buffers) and not buffers[0].same_as(buffers[1])
