"""Machine code of CUDA source, with what ptxas says of it.

The options are TVM's own, so that a tuned kernel is compiled as ``tvm.compile`` would.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import tvm

from . import _nvrtc
from ._compat import compile_cuda, ptxas_options
from ._function_of_thread import FunctionOfThread
from ._nvrtc import NvrtcProgram
from .errors import LayoutExtError, TargetError

#: What TVM compiles CUDA source by.
COMPILER = "tvm_callback_cuda_compile"
#: TVM's variable, and its two values; TVM's default is the first.
MODE_VARIABLE = "TVM_CUDA_COMPILE_MODE"
MODES = ("nvrtc", "nvcc")
#: Since this version nvrtc keeps machine code in the driver's cache, where there is a driver, and
#: its log then lacks ptxas's report: registers and spills were unknown of what was compiled before.
_CACHE_SINCE = (12, 9)
#: Of this version it is known that threads share the kernels of a source: the 62 of a ResNet-50
#: take 4.3 s for 6.4, with the same registers (16 cores).
_SPLITS_SINCE = (13, 0)
#: ptxas's numbers for ``wgmma`` that it serialises, or ``setmaxnreg`` that it ignores: calls, too
#: few registers, sums that are touched while products are under way, paths that part.
_SLOW = re.compile(r".*\((C75(?:0[489]|1[0-6]|18|20)|C7602)\).*")
#: As TVM gives them.
NVCC_OPTIONS = (
    "-O3",
    "-U__CUDA_NO_HALF_OPERATORS__",
    "-U__CUDA_NO_HALF_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT16_OPERATORS__",
    "-U__CUDA_NO_BFLOAT16_CONVERSIONS__",
    "-U__CUDA_NO_BFLOAT162_OPERATORS__",
    "-U__CUDA_NO_BFLOAT162_CONVERSIONS__",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
)


_STOCK = tvm.get_global_func(COMPILER, allow_missing=True)


class CompileError(LayoutExtError):
    """CUDA source that the compiler refuses, with all that it says of it."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)


class PtxasError(CompileError):
    """A kernel that ptxas refuses: bad PTX, or more of something than the GPU has."""


#: What TVM's CUDA text has for nvrtc, in whose front end the header takes half a second: as long as
#: all the rest of most kernels.
_TRAITS = re.compile(
    r"#include <cuda/std/type_traits>\s*namespace std \{(?:\s*using cuda::std::\w+;)+\s*\}"
)
#: What has another name of the library than those of integers.
_STD = r"\bstd::(?!u?int(?:8|16|32|64)_t\b)"
#: What TVM puts before all text for nvrtc, in whose front end the header takes 2 s, of a program's
#: 2.3 s; without it 0.1 s (nvrtc 13.5, one core of an AMD EPYC).
_LIMITS = b"#include <cuda/std/limits>\n"
_INFINITY = b"(::cuda::std::numeric_limits<float>::infinity())"
#: What else it brings, and where infinity is to be a constant of the front end.
_OF_LIMITS = re.compile(rf"numeric_limits|\b(?:FLT|DBL|LDBL)_|\bconstexpr\b|{_STD}".encode())
_USE = re.compile(rf"{_STD}|\bnamespace std\b")


@dataclass(frozen=True)
class MachineCode:
    """A cubin and ptxas's report on it, None where the compiler gave none.

    ``registers`` are a thread's of the hungriest kernel, ``spill_bytes`` those of all kernels, and
    ``slow`` says why products of warpgroups take longer than they need, if they do.
    """

    image: bytes
    registers: int | None
    spill_bytes: int | None
    compiler: str
    slow: str = ""

    @classmethod
    def reported(cls, image: bytes, report: str, compiler: str) -> MachineCode:
        """Read ptxas's verbose report."""
        slow = ""
        if found := _SLOW.search(report):
            text = found[0].partition(f"({found[1]})")[2].strip().rstrip(".")
            slow = f"ptxas makes the products of warpgroups slow, {found[1]}: {text}."
        used = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill", report)]
        spilled = sum(spills) if used else None
        return cls(image, max(used, default=None), spilled, compiler, slow)


def cuda_compiler() -> str:
    """``TVM_CUDA_COMPILE_MODE`` if set, else ``"nvrtc"`` if it is there, else ``"nvcc"``."""
    mode = os.environ.get(MODE_VARIABLE, "").lower()
    if mode and mode not in MODES:
        raise TargetError(f"{MODE_VARIABLE} is {mode!r}; it can be {' or '.join(MODES)}.")
    if mode:
        return mode
    if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
        return "nvrtc"
    if shutil.which("nvcc"):
        return "nvcc"
    raise TargetError(
        "There is no CUDA compiler: neither the package cuda-bindings (for nvrtc; install "
        "tvm-layout-ext[cuda]) nor nvcc on the PATH."
    )


def machine_code(source: str, arch: str) -> MachineCode:
    """Compile CUDA source to a cubin for an architecture, e.g. ``sm_90a``.

    CompileError or PtxasError if it does not compile: one sentence with the compiler's first
    complaint, then all of them; also if ``wgmma`` is serialised or spills. TargetError if there is
    no compiler.
    """
    code = compiled_code(source, arch)
    if code.slow:
        raise PtxasError(code.slow)
    return code


def compiled_code(source: str, arch: str, apart: bool = False) -> MachineCode:
    """What :func:`machine_code` gives, with what it refuses in ``slow``.

    ``apart`` compiles in a process of its own, so that threads do so side by side.
    """
    nvcc = cuda_compiler() == "nvcc"
    code = _by_nvcc(source, arch) if nvcc else _by_nvrtc(source, arch, apart)
    if code.spill_bytes and "wgmma.mma_async" in source and not code.slow:
        slow = (
            f"ptxas spills {code.spill_bytes} bytes of a kernel of wgmma, whose sums must stay in "
            "registers; take a smaller tile."
        )
        return replace(code, slow=slow)
    return code


@contextmanager
def refusing_slow_products(arch: str) -> Iterator[None]:
    """While entered, this thread compiles by :func:`machine_code`, if TVM compiles by its own.

    What is linked with NVSHMEM is left to TVM.
    """
    if not is_stock():
        yield
        return

    def compiled(source: str) -> Any:
        return _STOCK(source) if "nvshmem" in source else machine_code(source, arch).image

    with compiling_by(compiled):
        yield


def is_stock() -> bool:
    """Whether TVM compiles CUDA source by its own function."""
    compiler = _COMPILE.before()
    return compiler is not None and bool(compiler.same_as(_STOCK))


def compiling_by(compiler: Callable[[str], Any]) -> AbstractContextManager[None]:
    """While entered, this thread compiles CUDA source by a function, whose errors keep their class.

    Other threads compile as before.
    """
    return _COMPILE.replaced(compiler)


_COMPILE = FunctionOfThread(COMPILER)


@cache
def compiler_version(compiler: str) -> str:
    """Of nvrtc or nvcc, as it says itself; empty if it is not there, which compiling tells."""
    if compiler == "nvcc":
        if (nvcc := shutil.which("nvcc")) is None:
            return ""
        command = [nvcc, "--version"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    try:
        from cuda.bindings import nvrtc

        return str(nvrtc.nvrtcVersion()[1:])
    except (ImportError, RuntimeError):
        return ""


def _by_nvcc(source: str, arch: str) -> MachineCode:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise TargetError(f"{MODE_VARIABLE} is nvcc, and there is no nvcc on the PATH.")
    fast_math = [] if os.environ.get("TVM_CUDA_NVCC_NO_FAST_MATH") else ["--use_fast_math"]
    ptxas = f"--ptxas-options={','.join(ptxas_options())}"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tvm_kernels.cu"
        path.write_text(source)
        out = path.with_suffix(".cubin")
        command = [nvcc, "--cubin", *NVCC_OPTIONS, "-arch", arch, *fast_math, ptxas]
        done = subprocess.run(
            [*command, "-o", str(out), str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode:
            raise _refusal(done.stdout.replace(f"{folder}/", ""), "nvcc")
        return MachineCode.reported(out.read_bytes(), done.stdout, "nvcc")


def _by_nvrtc(source: str, arch: str, apart: bool) -> MachineCode:
    program = _nvrtc_program(source, arch, apart)
    found = _nvrtc.compiled_apart(program) if apart else _nvrtc.compiled(program)
    if found.image is None:
        raise _refusal(found.log, "nvrtc")
    return MachineCode.reported(found.image, found.log, "nvrtc")


def _nvrtc_program(source: str, arch: str, apart: bool = False) -> NvrtcProgram:
    """What TVM would hand to nvrtc, without headers that nothing uses; TargetError if it cannot."""
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise TargetError(
            f"{MODE_VARIABLE} is nvrtc, and the package cuda-bindings is not installed; "
            "install tvm-layout-ext[cuda]."
        ) from None
    found = list[NvrtcProgram]()
    own, stock = threading.get_ident(), (nvrtc.nvrtcCreateProgram, nvrtc.nvrtcCompileProgram)

    def create(text: bytes, *others: Any) -> Any:
        if threading.get_ident() != own:
            return stock[0](text, *others)
        found.append(NvrtcProgram(_without_limits(text), []))
        return nvrtc.nvrtcResult.NVRTC_SUCCESS, None

    def listening(program: Any, count: int, options: Any) -> Any:
        if threading.get_ident() != own:
            return stock[1](program, count, options)
        found[0].options.extend([*options, *_nvrtc_options(nvrtc, apart)])
        raise _Listened

    with _LISTENING, _replaced(nvrtc, nvrtcCreateProgram=create, nvrtcCompileProgram=listening):
        try:
            compile_cuda(
                _without_traits(source), target_format="cubin", arch=arch, compiler="nvrtc"
            )
        except _Listened:
            return found[0]
        except RuntimeError as error:
            raise TargetError(f"nvrtc cannot compile here: {_first(str(error))}.") from None
    raise TargetError("TVM does not compile by nvrtc, though it was asked to.")


class _Listened(BaseException):
    """Ends TVM's function once it is known what it hands to nvrtc."""


#: One thread at a time listens.
_LISTENING = threading.Lock()


@contextmanager
def _replaced(module: Any, **functions: Any) -> Iterator[None]:
    """While entered, a module has other functions."""
    before = {name: getattr(module, name) for name in functions}
    for name, function in functions.items():
        setattr(module, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _without_traits(source: str) -> str:
    """Leave type traits out where nothing uses them; all lines keep their numbers."""
    shorter = _TRAITS.sub(lambda found: "\n" * found[0].count("\n"), source)
    return source if _USE.search(shorter) else shorter


def _without_limits(text: bytes) -> bytes:
    """Define infinity without the header that TVM takes it from; all lines keep their numbers."""
    shorter = text.replace(_LIMITS, b"\n").replace(_INFINITY, b"(__int_as_float(0x7f800000))")
    return text if _OF_LIMITS.search(shorter) else shorter


def _nvrtc_options(nvrtc: Any, apart: bool) -> list[bytes]:
    """Options by which ptxas runs, and reports, also for source that was compiled before.

    And by which all cores compile what has several kernels, if no other processes do.
    """
    _, *version = nvrtc.nvrtcVersion()
    options = {_CACHE_SINCE: b"--no-cache"}
    if not apart:
        options[_SPLITS_SINCE] = b"--split-compile=0"
    return [option for since, option in options.items() if tuple(version) >= since]


def _first(text: str) -> str:
    return (text.strip().splitlines() or ["it gives no reason"])[0].rstrip(".")


def _refusal(output: str, compiler: str) -> CompileError:
    """The error for a compiler's complaints: ptxas's own, or the front end's."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    complaints = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()]
    first = (complaints or lines or ["it gives no reason"])[0]
    ptxas = any(line.startswith("ptxas") for line in complaints)
    kind, who = (PtxasError, "ptxas") if ptxas else (CompileError, compiler)
    first = re.sub(r"^ptxas\s+(/\S+, )?|(?<=\w)\s+(?=:)", "", first).rstrip(".")
    return kind(f"{who} refuses the kernel: {first}.\n{output.strip()[-4000:]}")
