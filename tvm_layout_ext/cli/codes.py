"""Exit codes of the command line."""

from __future__ import annotations

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
EPILOG = (
    "Exit codes: 0 done; 1 no candidate worked, a result was wrong or hazardous, or a winner no "
    "longer wins; 2 the input cannot be used; 130 interrupted."
)
