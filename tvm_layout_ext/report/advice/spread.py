"""Advice on products that have fewer tiles than the GPU has multiprocessors."""

from __future__ import annotations

from collections.abc import Iterator

from tvm import tirx

from ...errors import LayoutExtError
from ...gpu.hardware import MULTIPROCESSORS
from .remap import unscheduled
from .trial import Advice, Question

#: Terms of a sum that a slice should have at least.
_TERMS = 64


def advise(question: Question) -> Iterator[Advice]:
    """Cut the sums into slices, as many as there are multiprocessors for."""
    limit = question.now.limit
    if limit is None or not limit.is_unspread or question.is_te:
        return
    blocks = limit.work.blocks
    try:
        sch, name = unscheduled(question.schedule())
        (terms,) = (
            int(axis.dom.extent)
            for axis in sch.get(sch.get_sblock(name)).iter_vars
            if axis.iter_type == tirx.IterVar.CommReduce
        )
        most = min(MULTIPROCESSORS // blocks, terms // _TERMS)
        slices = max((n for n in range(1, most + 1) if terms % n == 0), default=1)
        if slices == 1:
            return
        sch.split_k(name, slices)
    except (LayoutExtError, RuntimeError, ValueError, TypeError):
        return
    yield Advice(
        f"{blocks} of {MULTIPROCESSORS} multiprocessors work: {slices} slices of the {terms} terms "
        f"of {name} make {blocks * slices} blocks",
        f'cut = sch.split_k("{name}", slices={slices})  # first; then tile cut.partial for {name}',
        None,
    )
