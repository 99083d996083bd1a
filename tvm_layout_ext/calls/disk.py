"""What was built once, on disk: lowered programs and machine code, by all that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ..cubin import compiler_version, cuda_compiler
from ..tune.measure.environment import versions
from ..tune.records.files import replace_file

#: Names another folder than ``~/.cache/tvm_layout_ext``.
VARIABLE = "TVM_LAYOUT_EXT_CACHE"
#: How variables begin that say how CUDA source is compiled, and by which headers.
_ASKED = ("TVM_CUDA_", "CUDA_HOME", "CUDA_PATH", "NVCC_")
_PACKAGE = Path(__file__).parents[1]


def folder() -> Path:
    """The cache's folder: that of :data:`VARIABLE`, else the user's."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "tvm_layout_ext"


@cache
def _code() -> str:
    """A digest of this package's files, so that a changed one is a fresh start."""
    files = [*_PACKAGE.rglob("*.py"), *(_PACKAGE / "schedules").glob("*.py")]
    facts = [(str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(files)]
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def key_of(*facts: Any) -> str:
    """A file name for what depends on some facts and on the installed versions."""
    told = json.dumps([*facts, versions(), _code()], sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


def image_key(source: str, arch: str) -> str:
    """A file name for the machine code of CUDA source: by its compiler, and what that asks."""
    asked = {name: value for name, value in os.environ.items() if name.startswith(_ASKED)}
    compiler = cuda_compiler()
    return f"{key_of(arch, source, compiler, compiler_version(compiler), asked)}.cubin"


def remembered(key: str, make: Callable[[], bytes]) -> bytes:
    """What is stored by a key; where nothing is, it is made and stored if the disk takes it."""
    found = known(key)
    if found is None:
        found = make()
        keep(key, found)
    return found


def known(key: str) -> bytes | None:
    """What is stored by a key, or None."""
    try:
        return (folder() / key).read_bytes()
    except OSError:
        return None


def keep(key: str, made: bytes) -> None:
    """Store something, if the disk takes it."""
    path = folder() / key
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, made)
