"""When the package is imported whole: at once as a library, on the command line by a command.

Loading takes a second, most of it TVM's.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any


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


def load(with_torch: bool = True) -> None:
    """Import all of the package; as a library it has been imported.

    TVM imports PyTorch first where it is installed, which takes longer than all the rest;
    ``with_torch`` says whether a command has any use for that.
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
