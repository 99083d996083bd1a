"""The command line: ``python -m tvm_layout_ext COMMAND`` and ``tvm-layout COMMAND``.

Exit codes: 0 done; 1 no candidate worked, a result was wrong, or a recorded winner no longer wins;
2 the input cannot be used; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import sys

from . import (
    bench,
    best,
    check,
    compare,
    demo,
    explain,
    export,
    layout,
    lint,
    operators,
    replay,
    report,
    simulate,
    tune,
)
from .app import app
from .codes import INTERRUPTED

__all__ = [
    "app",
    "bench",
    "best",
    "check",
    "compare",
    "demo",
    "explain",
    "export",
    "layout",
    "lint",
    "main",
    "operators",
    "replay",
    "report",
    "simulate",
    "tune",
]


def main() -> None:
    """Run the command line; the console script ``tvm-layout``."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
