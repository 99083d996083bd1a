"""Find what to explain in a file: a schedule, function or module, or TVMScript text."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx

from ..errors import ScheduleError
from ..schedule import Schedule

_KINDS = (Schedule, s_tir.Schedule, tirx.PrimFunc, tvm.IRModule)


#: Lines of an error that are all told, such as ``assert_kernel``'s.
_SHORT = 4


def load_file(path: str | Path, name: str | None = None) -> tuple[Any, list[Any] | None]:
    """Load what a file schedules.

    The file is Python, which is run, or text that ``script()`` printed. ``name`` is the variable to
    take, if there are several. Of a TE-style schedule the file's ``args``, a list of its tensors,
    are given, too. What the file prints goes to stderr.
    """
    text = _read(path)
    if _is_printed_script(text):
        return _parse(path, text), None
    defined = _run(path)
    return _with_args(defined, _choose(path, defined, name))


def load_all(source: str, name: str | None = None) -> tuple[Path, dict[str, tuple[Any, Any]]]:
    """Load all that a file, or a module by its dotted name, schedules: path, and what by name.

    Parameters and refusals are as of :func:`load_file`, but that there may be several.
    """
    path = Path(source)
    if not os.path.exists(source) and re.fullmatch(r"\w+(\.\w+)*", source):
        path = _file_of(source)
    if name is None and path.suffix == ".py" and not _is_printed_script(_read(path)):
        defined = _run(path)
        names = _names(defined) or [_choose(path, defined, None)]
        return path, {key: _with_args(defined, key) for key in names}
    return path, {name or path.stem: load_file(path, name)}


def _file_of(module: str) -> Path:
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    finally:
        sys.path.pop(0)
    if found is None or found.origin is None:
        raise ScheduleError(f"There is no file {module}, and no module of that name.")
    return Path(found.origin)


def _read(path: str | Path) -> str:
    try:
        if Path(path).is_char_device():
            # Such as /dev/zero, which has no end.
            raise ValueError("it is a device")
        return Path(path).read_text()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ScheduleError(f"Cannot read {path}: {why}.") from None


def _is_printed_script(text: str) -> bool:
    """Whether a file is TVMScript as ``script()`` prints it, with its imports as comments."""
    imports = re.search(r"^\s*(import|from)\s", text, re.MULTILINE)
    return imports is None and re.search(r"^@(I\.ir_module|T\.prim_func)", text, re.M) is not None


def _parse(path: str | Path, text: str) -> Any:
    try:
        return tvm.script.from_source(text)
    except Exception as error:
        raise ScheduleError(f"{path} is no TVMScript: {_told(error)}.") from None


def _run(path: str | Path) -> dict[str, Any]:
    try:
        with redirect_stdout(sys.stderr):
            return runpy.run_path(str(path))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        kind = type(error).__name__
        raise ScheduleError(f"Running {path} failed with {kind}: {_told(error)}.") from None


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "no text"
    # TVM says what is wrong last, behind a page of where.
    told = " ".join(lines) if len(lines) <= _SHORT else lines[-1]
    return told.rstrip(".")


def _names(defined: dict[str, Any]) -> list[str]:
    """Names of what can be explained; values are asked for nothing, as they may be anything."""
    return [key for key, value in defined.items() if issubclass(type(value), _KINDS)]


def _choose(path: str | Path, defined: dict[str, Any], name: str | None) -> str:
    found = _names(defined)
    names = ", ".join(found) or "none"
    if name is not None and name not in found:
        raise ScheduleError(
            f"{path} defines no schedule, function or module {name}; it has {names}."
        )
    if name is None and len(found) != 1:
        raise ScheduleError(
            f"{path} should define one schedule, function or module and defines {names}"
            f"{'; choose with --name' if found else ''}."
        )
    return name or found[0]


def _with_args(defined: dict[str, Any], name: str) -> tuple[Any, list[Any] | None]:
    chosen = defined[name]
    if not isinstance(chosen, Schedule):
        return chosen, None
    args = defined.get("args")
    return chosen, list(args) if isinstance(args, list | tuple) else None
