"""All programs of the corpus."""

from __future__ import annotations

from functools import cache

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

__all__ = ["programs"]

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
