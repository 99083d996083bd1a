"""Exit codes of the command line."""

from __future__ import annotations

from .._interrupt import INTERRUPTED as INTERRUPTED

FAILED, BAD_INPUT = 1, 2
EPILOG = (
    "Exit codes: 0 done; 1 no candidate worked, a result was wrong or hazardous, a winner no "
    "longer wins, or a rule is broken; 2 the input cannot be used; 130 interrupted."
)
