"""Advice on loops that wait for their copies into shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...ir.annotations import NUM_STAGES
from .trial import Advice, Question

_STAGES = 3


def advise(question: Question) -> Iterator[Advice]:
    """Copy ahead, if the model says that hides the copies."""
    copies = [name for name, block in question.blocks.items() if _fills_shared(block)]
    if not copies:
        return

    def buffered(sch: Any) -> None:
        for name in copies:
            sch.double_buffer(sch.get_sblock(name), num_stages=_STAGES)

    if saved := question.saved(question.attempt(buffered)):
        names = " and ".join(copies)
        yield Advice(
            f"Each step waits for {names}; {_STAGES} versions keep {_STAGES - 1} copies in flight",
            "; ".join(_line(question, name) for name in copies),
            saved,
        )


def _line(question: Question, name: str) -> str:
    if question.is_te:
        return f"{question.stage(name)}.double_buffer(num_stages={_STAGES})"
    return f"sch.double_buffer({question.stage(name)}, num_stages={_STAGES})"


def _fills_shared(block: Any) -> bool:
    """Whether a block only copies global memory into a shared buffer, of one version."""
    regions = [*block.reads, *block.writes]
    scopes = [str(region.source.scope()) for region in regions]
    is_copy = len(regions) == 2 and scopes[0] == "global" and scopes[1].startswith("shared")
    return is_copy and NUM_STAGES not in block.annotations
