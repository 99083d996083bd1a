"""Run pipelined, swizzled and staged kernels, and those of warpgroups, for ``compute-sanitizer``.

``python -m benchmarks.sanitize --build FOLDER`` compiles them there. Then ``compute-sanitizer
--tool memcheck python -m benchmarks.sanitize --from FOLDER``, or ``racecheck``, ``initcheck`` and
``synccheck``, reports what the simulated GPU should have reported. ``--runs 1000`` repeats each,
and compares all bits with those of the first run. Every first result is compared with NumPy's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.space.operator import Tolerance, find_operator
from tvm_layout_ext.tune.space.space import Space

__all__ = ["Kernel", "kernels", "main", "pipelined"]

_SHAPE = (128, 128, 192)
#: Sizes with ragged ends and several tiles for each of the persistent blocks, by ``wgmma``.
_RAGGED = (1000, 1544, 520)
#: Sizes of which B stays in shared memory.
_TALL = (17100, 144, 88)
#: Operator, shape, type, and wishes of the kernels of warpgroups.
_WARPGROUPS: tuple[tuple[str, tuple[int, ...], str, dict[str, Any]], ...] = (
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "128x256"}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "128x64"}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "256x96"}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "64x64"}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "128x128", "cluster": 2}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "256x64", "cluster": 4}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "128x128", "cluster": 2, "split_k": 2}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "128x128", "split_k": 2}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "2x128x128"}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "2x64x128", "cluster": 2}),
    ("gemm_nt", _TALL, "float16", {"wgmma": "128x144", "cluster": 1}),
    ("gemm_nt", _TALL, "float16", {"wgmma": "2x64x192", "cluster": 1}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "t152x128", "cluster": 1}),
    ("gemm", _RAGGED, "bfloat16", {"wgmma": "t248x128", "cluster": 1}),
    ("gemm_nt", _RAGGED, "float16", {"wgmma": "t160x128", "cluster": 2}),
    ("gemm", _RAGGED, "bfloat16", {"wgmma": "t88x128", "cluster": 2}),
    ("gemm_nt", (16, 1536, 1024), "float16", {"wgmma": "16x64"}),
    ("gemm_nt", (5, 1536, 1024), "float16", {"wgmma": "8x128", "cluster": 2, "split_k": 2}),
    ("gemm", _RAGGED, "bfloat16", {"wgmma": "128x256"}),
    ("gemm", _RAGGED, "float16", {"wgmma": "128x208", "cluster": 2}),
    ("gemm_nt", (520, 1544, 528), "float8_e4m3fn", {"wgmma": "128x256"}),
    ("gemm_nt", (520, 1544, 528), "int8", {"wgmma": "128x128"}),
    ("gemm_nt", (520, 1544, 264), "float32", {"wgmma": "128x128"}),
    ("gemm_gated", (1000, 520, 264), "float16", {"tile": "128x112"}),
    ("gemm_gated", (9, 520, 264), "bfloat16", {"tile": "16x64"}),
    ("gemm_scaled", (520, 1544, 512), "float8_e4m3fn", {"tile": "256x128", "cluster": 1}),
    ("gemm_scaled", (1000, 1544, 896), "float8_e4m3fn", {"tile": "128x64", "cluster": 1}),
    ("gemm_scaled", (1000, 1544, 512), "float8_e5m2", {"tile": "128x128", "cluster": 2}),
    ("conv2d", (4, 14, 14, 72, 200, 3, 3), "float16", {}),
    ("conv2d", (3, 7, 7, 64, 128, 1, 1), "float16", {}),
    ("conv2d_strided", (4, 14, 14, 64, 128, 3, 3), "float16", {}),
    ("depthwise_conv2d", (4, 14, 14, 96, 7, 7), "float16", {}),
    ("depthwise_conv2d", (2, 9, 15, 40, 3, 5), "float32", {}),
    ("attention", (2, 3, 3, 200, 200, 64), "float16", {}),
    ("attention_causal", (1, 4, 2, 400, 400, 128), "bfloat16", {}),
    ("attention", (1, 2, 2, 300, 200, 256), "float16", {}),
    ("attention", (1, 8, 2, 1, 2000, 128), "float16", {}),
    ("attention", (4, 16, 16, 520, 300, 64), "float16", {}),
    ("attention_causal", (4, 16, 16, 520, 520, 128), "float16", {}),
    ("attention_biased", (4, 16, 16, 520, 520, 64), "float16", {}),
    ("attention_biased", (1, 3, 1, 200, 400, 128), "bfloat16", {}),
    ("grouped_gemm", (5, 1000, 520, 264), "float16", {}),
    ("grouped_gemm", (3, 200, 136, 72), "bfloat16", {}),
    ("ragged_attention", (3, 4, 2, 200, 150, 64), "float16", {}),
    ("ragged_attention", (4, 8, 2, 4, 2000, 128), "float16", {}),
    ("ragged_causal", (5, 4, 1, 700, 900, 128), "bfloat16", {}),
)


@dataclass(frozen=True)
class Kernel:
    """A kernel to run: what gives its program, its inputs, and NumPy's result of them."""

    name: str
    module: Callable[[], Any]
    inputs: Callable[[], list[np.ndarray]]
    reference: Callable[..., np.ndarray]
    tolerance: Tolerance


def kernels() -> list[Kernel]:
    """Every kernel."""
    return [*pipelined(), *(_operated(*one) for one in _WARPGROUPS)]


def _operated(name: str, shape: tuple[int, ...], dtype: str, wishes: dict[str, Any]) -> Kernel:
    operator = find_operator(name)

    def module() -> Any:
        default = Space(operator, shape, dtype, architecture("sm_90a")).default()
        tensors = operator.compute(shape, dtype)
        sch = operator.schedule(tensors, default | wishes)
        return sch.mod if isinstance(sch, s_tir.Schedule) else sch.to_module(tensors)

    told = (f"{key} {value}" for key, value in wishes.items())
    full = " ".join([name, "x".join(map(str, shape)), dtype, *told])
    inputs = partial(operator.inputs, shape, dtype, np.random.default_rng(1))
    return Kernel(full, module, inputs, operator.reference, operator.tolerance(shape, dtype))


def pipelined() -> list[Kernel]:
    """Kernels without warpgroups."""
    small = {"tile_m": 64, "tile_n": 64, "wgmma": "none", "split_k": 1, "cluster": 1}
    wishes = (
        small | {"stages": stages, "prefetch": prefetch}
        for stages, prefetch in product((1, 2, 4), (0, 1))
    )
    return [
        *(_operated("gemm", _SHAPE, "float16", one) for one in wishes),
        _operated("transpose", (300, 200), "float16", {}),
        _operated("column_sum", (4096, 256), "float16", {}),
        *(
            _operated(name, (250, 1000), "float16", {"stages": stages})
            for name, stages in product(("stream_reduce", "stencil"), (1, 2, 4))
        ),
    ]


def _build(folder: Path, number: int) -> str:
    os.environ.setdefault("TVM_CUDA_COMPILE_MODE", "nvcc")
    target = tlx.cuda_target("sm_90a")
    kernel = kernels()[number]
    with target:
        program = kernel.module()
    tlx.build(program, target=target).export_library(str(folder / f"{number}.so"))
    return kernel.name


def _run(kernel: Kernel, path: Path, runs: int) -> str:
    """Run a kernel; NumPy's result, and the same bits in each run."""
    device, run = tvm.cuda(0), tvm.runtime.load_module(str(path))["main"]
    inputs = kernel.inputs()
    expected = kernel.reference(*inputs)
    arrays = [tvm.runtime.tensor(one, device) for one in inputs]
    poison = np.full(expected.shape, 77, expected.dtype)
    first = None
    for _ in range(runs):
        out = tvm.runtime.tensor(poison, device)
        run(*arrays, out)
        found = out.numpy()
        if first is None:
            first = found
            got, want = (x.astype(np.float64) for x in (found, expected))
            allowed = kernel.tolerance.atol + kernel.tolerance.rtol * np.abs(want)
            if wrong := int((~(np.abs(got - want) <= allowed)).sum()):
                return f"WRONG in {wrong} of {want.size} elements"
        elif found.tobytes() != first.tobytes():
            return "OTHER BITS in a later run"
    return "right" if runs == 1 else f"right, and the same bits in {runs} runs"


def main() -> None:
    """Build them all, or run them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--from", type=Path, dest="folder")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[""], help="kernels whose names begin so")
    given = parser.parse_args()
    numbers = [i for i, one in enumerate(kernels()) if one.name.startswith(tuple(given.only))]
    if given.build:
        given.build.mkdir(parents=True, exist_ok=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(mp_context=context) as pool:
            for name in pool.map(partial(_build, given.build), numbers):
                print(f"built {name}")
    if given.folder:
        every = kernels()
        for i in numbers:
            told = _run(every[i], given.folder / f"{i}.so", given.runs)
            print(f"{every[i].name}: {told}", flush=True)


if __name__ == "__main__":
    main()
