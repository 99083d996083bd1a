"""Ctrl-C while the command line is still loading ends it without a traceback.

Loading takes a second, most of it TVM's, and is done when a command runs. Imported first of all;
as a library, nothing is changed.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

#: Exit code of an interrupted command.
INTERRUPTED = 130


def is_command_line(argv: list[str]) -> bool:
    """Whether Python was started as ``tvm-layout`` or ``python -m tvm_layout_ext``."""
    words = iter(argv[1:])
    for word in words:
        if word in ("-X", "-W"):
            next(words, None)
        elif word == "-m":
            return next(words, "") == "tvm_layout_ext"
        elif not word.startswith("-"):
            return Path(word).name == "tvm-layout"
    return False


def _leave(*_: Any) -> None:
    os._exit(INTERRUPTED)


def load(with_torch: bool = True) -> None:
    """Import all of the package; from then on Ctrl-C raises KeyboardInterrupt.

    As a library it has been imported. TVM imports PyTorch first where it is installed, which takes
    longer than all the rest; ``with_torch`` says whether a command has any use for that.
    """
    modules: dict[str, Any] = sys.modules
    kept_out = not with_torch and "torch" not in modules
    if kept_out:
        modules["torch"] = None
    try:
        api = importlib.import_module("tvm_layout_ext._api")
    finally:
        if kept_out:
            del modules["torch"]
    vars(sys.modules["tvm_layout_ext"]).update({name: getattr(api, name) for name in api.__all__})
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command_line(sys.orig_argv):
    signal.signal(signal.SIGINT, _leave)
