"""Reductions: their strategies are in :mod:`..reduction`."""

from __future__ import annotations

from dataclasses import replace

from ..isolate import has_other_writers
from ..reduction.propose import propose_reduction
from ..strategy import Strategy
from ..subject import Subject


def reduced(subject: Subject) -> list[Strategy]:
    """Propose all ways to share out a reduction that is in no kernel."""
    if subject.kernel is not None or not subject.is_reduction:
        return []
    if has_other_writers(subject.sch, subject.nest):
        subject = subject.apart
    found = propose_reduction(subject.nest, subject.request)
    return [replace(one, isolated=subject.isolated) for one in found]
