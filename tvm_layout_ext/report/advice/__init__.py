"""What to do about a kernel: one kind of advice a file, each tried before it is given."""

from __future__ import annotations

from . import conflicts, remap, spread, stages, vectorise
from .trial import Advice, Question

__all__ = ["MOST", "Advice", "Question", "advise"]

#: Pieces of advice that are given.
MOST = 3
_KINDS = (spread, conflicts, vectorise, stages, remap)


def advise(question: Question) -> list[Advice]:
    """At most :data:`MOST` things to do; those that save the most come first.

    There are none for what is lowered, what cannot be modelled, and a module of several functions.
    """
    if not question.now.limits or not question.blocks:
        return []
    found = [advice for kind in _KINDS for advice in kind.advise(question)]
    found.sort(key=lambda advice: -advice.seconds)
    return found[:MOST]
