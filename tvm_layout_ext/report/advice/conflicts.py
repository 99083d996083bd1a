"""Advice on shared buffers whose accesses meet banks more than once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .trial import Advice, Attempt, Question

#: The annotation of ``storage_align``, which a swizzle takes the place of.
_ALIGN = "buffer_dim_align"


def advise(question: Question) -> Iterator[Advice]:
    """Swizzle or pad a buffer, if that takes conflicts away."""
    for buffer in dict.fromkeys(a.buffer for a in question.report.accesses if a.bank_conflicts):
        writers = [
            name
            for name, block in question.blocks.items()
            if any(str(region.source.name) == buffer for region in block.writes)
        ]
        if len(writers) != 1:
            continue
        trial = _swizzled(question, writers[0])
        before = question.now.conflicts(buffer)
        after = before if trial is None else trial.conflicts(buffer)
        if after < before:
            yield Advice(
                f"{buffer} meets banks {_times(question, buffer)}; a swizzle saves "
                f"{before - after:,} of {before:,} extra wavefronts",
                _line(question, writers[0]),
                question.saved(trial),
            )


def _swizzled(question: Question, writer: str) -> Attempt | None:
    def swizzle(sch: Any) -> None:
        if _ALIGN in question.blocks[writer].annotations:
            sch.unannotate(sch.get_sblock(writer), _ALIGN)
        sch.swizzle(sch.get_sblock(writer))

    return question.attempt(swizzle)


def _times(question: Question, buffer: str) -> str:
    """How often the worst access meets a bank."""
    sites = [a for a in question.report.accesses if a.buffer == buffer]
    worst = max(a.wavefronts / max(1, a.wavefronts - a.bank_conflicts) for a in sites)
    return f"{worst:.3g} times"


def _line(question: Question, writer: str) -> str:
    stage = question.stage(writer)
    if question.is_te:
        return f'{stage}.storage_align({stage}.op.axis[-2], swizzle="auto")'
    is_padded = _ALIGN in question.blocks[writer].annotations
    before = f'sch.unannotate({stage}, "{_ALIGN}")\n' if is_padded else ""
    return f'{before}sch.swizzle({stage}, mode="auto")'
