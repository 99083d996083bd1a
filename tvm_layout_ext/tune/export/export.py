"""``export``: a kernel as a library of its own, with a C header and a Python module."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from keyword import iskeyword
from pathlib import Path
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.target import Target

from ..._version import __version__
from ...build import cuda_source, to_module
from ...checks import path_of
from ...cubin import NVCC_OPTIONS
from ...errors import RecordError, ScheduleError, TargetError
from ...target import resolve
from ..records.record import Record
from ..space.operator import Operator
from .launches import HostPlan, host_plan
from .text import cuda_text, header_text, loader_text

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LIBRARY = ("-shared", "-cudart=static", "-Xcompiler=-fPIC,-fvisibility=hidden")
#: Words of C++ or C that no function may be called, beside those that Python has, too. nvcc takes
#: ``main`` and ``restrict``, but no user of the header does.
_KEYWORD = re.compile(
    "alignas|alignof|and_eq|asm|auto|bitand|bitor|bool|case|catch|char|char8_t|char16_t|"
    "char32_t|compl|concept|const|consteval|constexpr|constinit|const_cast|co_await|"
    "co_return|co_yield|decltype|default|delete|do|double|dynamic_cast|enum|explicit|export|"
    "extern|false|float|friend|goto|inline|int|long|main|mutable|namespace|new|noexcept|"
    "not_eq|nullptr|operator|or_eq|private|protected|public|register|reinterpret_cast|"
    "requires|restrict|short|signed|sizeof|static|static_assert|static_cast|struct|switch|"
    "template|this|thread_local|throw|true|typedef|typeid|typename|union|unsigned|using|"
    "virtual|void|volatile|wchar_t|xor|xor_eq"
)


@dataclass(frozen=True)
class Exported:
    """The files of an exported kernel, and what it takes and launches."""

    library: Path
    header: Path
    loader: Path
    source: Path
    plan: HostPlan


def export(
    source: Record | s_tir.Schedule | tvm.IRModule | tirx.PrimFunc,
    path: str | os.PathLike[str],
    *,
    target: str | Target | None = None,
    operator: Operator | None = None,
) -> Exported:
    """Write a kernel as a shared library that needs neither TVM nor this package.

    For ``path`` ``turn`` these are ``libturn.so`` (``turn.so`` is what ``import turn`` would take),
    ``turn.h``, which says what its one function takes, ``turn.py``, which calls it on tensors of
    any library that speaks DLPack, and ``turn.cu``, from which it was compiled. Shapes and
    architecture are fixed.
    ScheduleError if the host side does more than launch.

    Parameters
    ----------
    source : Record, tvm.s_tir.Schedule, tvm.IRModule or PrimFunc
        A record of a tuned operator, or a scheduled function.
    path : path
        Without a suffix; its last part must be a C identifier.
    target : str or tvm.target.Target, optional
        By default a record's own architecture, else :func:`tvm_layout_ext.default_target`.
    operator : Operator, optional
        Of a record of no ready schedule, see :meth:`.Programs.operator`.
    """
    prefix = path_of("What export writes to", path, ScheduleError)
    if not isinstance(operator, Operator | None):
        raise ScheduleError(f"operator is an Operator, as find_operator gives, not {operator!r}.")
    if not _IDENTIFIER.fullmatch(prefix.name):
        raise ScheduleError(f"{prefix.name!r} is no C identifier; it names the exported function.")
    if iskeyword(prefix.name) or _KEYWORD.fullmatch(prefix.name):
        raise ScheduleError(
            f"{prefix.name!r} is a word of C++ or of Python; it names the exported function, so "
            f"another one is legal, e.g. {prefix.name}_kernel."
        )
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise TargetError("export compiles with nvcc, which is not on the path.")
    if isinstance(source, Record):
        module, about = source.schedule(operator).mod, _about(source)
        resolved = source.target if target is None else resolve(target)
    else:
        module, about, resolved = to_module(source), "A schedule.", resolve(target)
    plan = host_plan(module, resolved)
    kernels = cuda_source(module, target=resolved)
    arch, name = str(resolved.attrs["arch"]), prefix.name
    texts = {
        ".cu": cuda_text(name, plan, kernels),
        ".h": header_text(name, plan, arch, __version__, about),
        ".py": loader_text(name, plan),
    }
    return _written(prefix, texts, nvcc, arch, plan)


def _about(record: Record) -> str:
    time = f", {record.median * 1e6:.1f} us" if record.measured and record.median else ""
    how = "measured" if record.measured else "modelled"
    return f"{record.workload}: record {record.id}, {how} on {record.device}{time}."


def _written(prefix: Path, texts: dict[str, str], nvcc: str, arch: str, plan: HostPlan) -> Exported:
    """Compile in a folder of its own, then put all files in place."""
    try:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=prefix.parent) as folder:
            made = Path(folder) / prefix.name
            for suffix, text in texts.items():
                made.with_suffix(suffix).write_text(text)
            # As TVM compiles its kernels, so that the exported one is the tuned one.
            options = [f"-arch={arch}", *NVCC_OPTIONS, *_LIBRARY]
            library = made.with_name(f"lib{made.name}.so")
            command = [nvcc, *options, "-o", str(library), f"{made}.cu"]
            ran = subprocess.run(command, capture_output=True, text=True, check=False)
            if ran.returncode:
                lines: list[Any] = [line for line in ran.stderr.splitlines() if "error" in line]
                raise TargetError(f"nvcc refuses the kernel: {(lines or [ran.stderr])[0]}")
            for one in (library, *map(made.with_suffix, texts)):
                one.replace(prefix.with_name(one.name))
    except OSError as error:
        raise RecordError(
            f"Cannot write {prefix}: {os.strerror(error.errno or 0)}; no file was replaced."
        ) from None
    header, loader, cuda = (prefix.with_suffix(s) for s in (".h", ".py", ".cu"))
    return Exported(prefix.with_name(library.name), header, loader, cuda, plan)
