"""All programs of the corpus."""

from __future__ import annotations

import random
from functools import cache

from tests import sampling
from tests.golden.programs import (
    blocks,
    fragments,
    moves,
    operators,
    pipelines,
    products,
    reductions,
    shared_memory,
    tutorials,
)
from tests.golden.programs.program import Program

__all__ = ["programs", "some"]

#: Those whose programs take longest first, so that no process is left with one at the end.
_SUBJECTS = (
    *(products, operators, tutorials, reductions, moves),
    *(fragments, pipelines, shared_memory, blocks),
)


@cache
def programs() -> dict[str, Program]:
    """All programs by name."""
    found: dict[str, Program] = {}
    for subject in _SUBJECTS:
        for program in subject.programs():
            assert program.name not in found, f"two programs are named {program.name}"
            found[program.name] = program
    return found


def some(number: int, whole: int | None = None) -> list[str]:
    """Names of so many programs; in a whole run of ``whole`` or of all."""
    names = sorted(programs())
    wanted = (whole or len(names)) if sampling.whole else number
    return sorted(random.Random(sampling.seed).sample(names, wanted))
