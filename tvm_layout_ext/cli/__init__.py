"""The command line: ``python -m tvm_layout_ext COMMAND`` and ``tvm-layout COMMAND``.

Exit codes: 0 done; 1 no candidate worked, a result was wrong, or a recorded winner no longer wins;
2 the input cannot be used; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

from .app import INTERRUPTED, app

__all__ = ["app", "main"]

# A command a file.
for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)


def main() -> None:
    """Run the command line; the console script ``tvm-layout``."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
