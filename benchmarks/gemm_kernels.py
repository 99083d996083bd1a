"""Matrix products to measure: what is computed, how it is scheduled, and its machine code.

Machine code is made in processes of their own, one a core, and kept in a folder; whoever measures
loads it from there. ``nvcc`` is called once a kernel, and its report is kept.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["ARCH", "Case", "compile_all", "compile_one", "device_source", "load", "tuned"]

ARCH = "sm_90a"
#: Type of the sums and of the result, and the instruction, by the type of the operands.
_TYPES = {
    "float16": ("float32", "float16", "auto"),
    "bfloat16": ("float32", "bfloat16", "auto"),
    "float32": ("float32", "float32", "mma.m16n8k8.f32.tf32"),
    "int8": ("int32", "int32", "auto"),
    "float8_e4m3fn": ("float32", "float16", "auto"),
}


def tuned(text: str) -> dict[str, Any]:
    """Configuration of the GEMM's knobs from ``tile_m=128 ...``; the others have their defaults."""
    from tvm_layout_ext.schedules import gemm

    given = dict(part.split("=") for part in text.split())
    ints = {name: int(value) if value.isdigit() else value for name, value in given.items()}
    config = gemm.OPERATOR.default_config() | ints
    gemm.OPERATOR.check_config(config)
    return config


@dataclass(frozen=True)
class Case:
    """``C = A @ B`` of some size, types and layout, under some configuration.

    Attributes
    ----------
    shape : tuple of int
        M, N, K.
    config : str
        The knobs, as :func:`tuned` reads them.
    operand : str
        Type of A and B.
    layout : str
        ``nt`` where B is stored N x K, ``nn`` where it is stored K x N.
    """

    shape: tuple[int, int, int]
    config: str
    operand: str = "float16"
    layout: str = "nt"

    @property
    def key(self) -> str:
        """Name of its files."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def flops(self) -> int:
        """Arithmetic operations."""
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def result(self) -> str:
        """Type of C."""
        return _TYPES[self.operand][1]

    def schedule(self) -> Any:
        """TensorIR schedule of the product."""
        from tvm import s_tir

        from tvm_layout_ext import te
        from tvm_layout_ext.schedules import gemm

        (M, N, K), (sums, result, instruction) = self.shape, _TYPES[self.operand]
        A = te.placeholder((M, K), self.operand, name="A")
        B = te.placeholder((N, K) if self.layout == "nt" else (K, N), self.operand, name="B")
        k = te.reduce_axis((0, K), "k")

        def element(i: Any, j: Any) -> Any:
            a, b = A[i, k], B[j, k] if self.layout == "nt" else B[k, j]
            if self.operand != sums:
                a, b = a.astype(sums), b.astype(sums)
            return te.sum(a * b, axis=k)

        product = te.compute((M, N), element, name="product")
        C = te.compute((M, N), lambda i, j: product[i, j].astype(result), name="C")
        func = te.create_prim_func([A, B, C]).with_attr("global_symbol", "main")
        sch = s_tir.Schedule(func)
        gemm.multiply(sch, "product", tuned(self.config), instruction)
        return sch

    def knobs(self) -> dict[str, Any]:
        """Return the configuration by name."""
        return tuned(self.config)

    def kernels(self) -> dict[str, Any]:
        """Device functions, as code generation sees them."""
        import tvm_layout_ext as tlx

        return tlx.device_program(self.schedule().mod, target=tlx.cuda_target(ARCH)).kernels


def _machine_code(source: Path) -> tuple[Path, str]:
    out = source.with_suffix(".cubin")
    command = ["nvcc", "-w", "-O3", f"-arch={ARCH}", "-cubin", "-Xptxas", "-v"]
    done = subprocess.run(
        [*command, "-o", str(out), str(source)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"nvcc does not compile {source}:\n{done.stderr}")
    return out, done.stderr


def device_source(kernels: Mapping[str, Any]) -> str:
    """CUDA of device functions, without compiling it."""
    import tvm

    import tvm_layout_ext as tlx

    # TVM would compile on a machine with a GPU; nvcc is called here, for its report.
    tvm.register_global_func("tvm_callback_cuda_compile", lambda code: b"\0", override=True)
    build = tvm.get_global_func("target.build.cuda")
    module = build(tvm.IRModule(dict(kernels)), tlx.cuda_target(ARCH))
    return str(module.inspect_source())


def compile_one(case: Case, folder: Path) -> dict[str, Any]:
    """Write machine code and facts of a case; return the facts.

    Raises
    ------
    RuntimeError
        If nvcc refuses the kernel.
    """
    from tvm_layout_ext.build import shared_buffers

    kernels = case.kernels()
    source = device_source(kernels)
    (kernel,) = kernels.values()
    path = folder / f"{case.key}.cu"
    path.write_text(source)
    _, report = _machine_code(path)
    config = case.knobs()
    (m, n, _), (tile_m, tile_n) = case.shape, (config["tile_m"], config["tile_n"])
    signature = re.search(r"main_kernel\(([^)]*)\)\s*{", source)
    facts = {
        "case": asdict(case),
        "grid": (-(-n // tile_n), -(-m // tile_m), 1),
        "block": (32, config["warps_m"], config["warps_n"]),
        "shared_bytes": sum(shared_buffers(kernel).values()),
        "registers": int(re.search(r"Used (\d+) registers", report)[1]),  # type: ignore[index]
        "spill_bytes": sum(map(int, re.findall(r"(\d+) bytes spill", report))),
        "stack_bytes": sum(map(int, re.findall(r"(\d+) bytes stack", report))),
        "arguments": re.findall(r"(\w)_ptr", signature[1]) if signature else [],
        "barriers": source.count("__syncthreads"),
    }
    (folder / f"{case.key}.json").write_text(json.dumps(facts))
    return facts


def _worker(case: Case, folder: str) -> str | None:
    try:
        compile_one(case, Path(folder))
    except Exception as error:
        return f"{case}: {type(error).__name__}: {str(error)[:400]}"
    return None


def _hide_gpu() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def compile_all(cases: Sequence[Case], folder: Path, processes: int) -> list[str]:
    """Compile cases in parallel; return what went wrong, one sentence a case."""
    folder.mkdir(parents=True, exist_ok=True)
    left = [case for case in cases if not (folder / f"{case.key}.json").exists()]
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes, initializer=_hide_gpu) as pool:
        problems = pool.starmap(_worker, [(case, str(folder)) for case in left], chunksize=1)
    return [problem for problem in problems if problem]


def load(case: Case, folder: Path) -> tuple[bytes, dict[str, Any]] | None:
    """Machine code and facts of a case; None if it did not compile."""
    facts = folder / f"{case.key}.json"
    if not facts.exists():
        return None
    return (folder / f"{case.key}.cubin").read_bytes(), json.loads(facts.read_text())
