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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tvm

from ._compat import compile_cuda, ptxas_options
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
_USE = re.compile(r"\bstd::(?!u?int(?:8|16|32|64)_t\b)|\bnamespace std\b")


@dataclass(frozen=True)
class MachineCode:
    """A cubin and ptxas's report on it, None where the compiler gave none.

    ``registers`` are a thread's of the hungriest kernel, ``spill_bytes`` those of all kernels.
    """

    image: bytes
    registers: int | None
    spill_bytes: int | None
    compiler: str

    @classmethod
    def reported(cls, image: bytes, report: str, compiler: str) -> MachineCode:
        """Read ptxas's verbose report; PtxasError if it makes products of warpgroups slow."""
        if slow := _SLOW.search(report):
            text = slow[0].partition(f"({slow[1]})")[2].strip().rstrip(".")
            raise PtxasError(f"ptxas makes the products of warpgroups slow, {slow[1]}: {text}.")
        used = [int(number) for number in re.findall(r"Used (\d+) registers", report)]
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill", report)]
        return cls(image, max(used, default=None), sum(spills) if used else None, compiler)


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
    code = (_by_nvcc if cuda_compiler() == "nvcc" else _by_nvrtc)(source, arch)
    if code.spill_bytes and "wgmma.mma_async" in source:
        raise PtxasError(
            f"ptxas spills {code.spill_bytes} bytes of a kernel of wgmma, whose sums must stay in "
            "registers; take a smaller tile."
        )
    return code


@contextmanager
def refusing_slow_products(arch: str) -> Iterator[None]:
    """While entered, TVM's own compiler refuses kernels of ``wgmma`` as :func:`machine_code` does.

    Another compiler than TVM's own is left in its place.
    """
    stock = tvm.get_global_func(COMPILER, allow_missing=True)
    if stock is None or not stock.same_as(_STOCK):
        yield
        return

    def compiled(source: str) -> Any:
        slow = "wgmma.mma_async" in source
        return machine_code(source, arch).image if slow else stock(source)

    with compiling_by(compiled):
        yield


@contextmanager
def compiling_by(compiler: Callable[[str], Any]) -> Iterator[None]:
    """While entered, TVM compiles CUDA source by a function, whose errors keep their class."""
    stock, failed = tvm.get_global_func(COMPILER), list[LayoutExtError]()

    def compiled(source: str) -> Any:
        try:
            return compiler(source)
        except LayoutExtError as error:
            # Its class is lost on its way through TVM.
            failed.append(error)
            raise

    tvm.register_global_func(COMPILER, compiled, override=True)
    try:
        yield
    except Exception:
        if failed:
            raise failed[0] from None
        raise
    finally:
        tvm.register_global_func(COMPILER, stock, override=True)


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


def _by_nvrtc(source: str, arch: str) -> MachineCode:
    try:
        from cuda.bindings import nvrtc
    except ImportError:
        raise TargetError(
            f"{MODE_VARIABLE} is nvrtc, and the package cuda-bindings is not installed; "
            "install tvm-layout-ext[cuda]."
        ) from None
    reports: list[str] = []
    compile_program = nvrtc.nvrtcCompileProgram

    def listening(program: Any, _count: int, options: Any) -> Any:
        given = [*options, *_nvrtc_options(nvrtc)]
        result = compile_program(program, len(given), given)
        reports.append(_program_log(nvrtc, program))
        return result

    # TVM reads the log only of what fails, and destroys the program before it returns.
    nvrtc.nvrtcCompileProgram = listening
    try:
        image = compile_cuda(
            _without_traits(source), target_format="cubin", arch=arch, compiler="nvrtc"
        )
    except RuntimeError as error:
        if not reports:
            raise TargetError(f"nvrtc cannot compile here: {_first(str(error))}.") from None
        raise _refusal("".join(reports), "nvrtc") from None
    finally:
        nvrtc.nvrtcCompileProgram = compile_program
    return MachineCode.reported(bytes(image), "".join(reports), "nvrtc")


def _without_traits(source: str) -> str:
    """Leave type traits out where nothing uses them; all lines keep their numbers."""
    shorter = _TRAITS.sub(lambda found: "\n" * found[0].count("\n"), source)
    return source if _USE.search(shorter) else shorter


def _nvrtc_options(nvrtc: Any) -> list[bytes]:
    """Options by which ptxas runs, and reports, also for source that was compiled before.

    And by which all cores compile what has several kernels.
    """
    _, *version = nvrtc.nvrtcVersion()
    options = {_CACHE_SINCE: b"--no-cache", _SPLITS_SINCE: b"--split-compile=0"}
    return [option for since, option in options.items() if tuple(version) >= since]


def _program_log(nvrtc: Any, program: Any) -> str:
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    text = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode(errors="replace").rstrip("\0")


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
