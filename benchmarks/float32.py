"""Time exact products of float32 beside cuBLAS, each call with a cold L2 cache.

``python -m benchmarks.float32 --out FILE`` needs a CUDA GPU and torch; ``--dry-run`` builds
everything without either. Torch's tf32 is off. Each result is held against float64 first. With
``--every`` other tiles than the default are timed, too.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from math import exp, log
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir, te

import tvm_layout_ext as tlx
from benchmarks.attention import on_stream
from benchmarks.memory_bound import provenance
from tvm_layout_ext.schedules.matmul import NAMES, cycles, fitting, multiply
from tvm_layout_ext.text import columns

#: Batch, rows, columns, terms; how B is stored.
CASES = (
    (1, 512, 4096, 784, "nt"),
    (1, 512, 784, 4096, "nt"),
    (1, 4096, 4096, 4096, "nt"),
    (1, 2048, 2048, 2048, "nn"),
    (1, 1024, 1024, 1024, "nt"),
    (1, 1024, 4096, 1024, "nn"),
    (1, 511, 1023, 777, "nt"),
    (1, 511, 1023, 777, "nn"),
    (96, 384, 384, 64, "nt"),
    (96, 384, 64, 384, "nn"),
    (1, 64, 4096, 4096, "nt"),
    (1, 16, 4096, 4096, "nt"),
    (1, 16, 4096, 4096, "nn"),
    (1, 4, 4096, 4096, "nt"),
)
ROUNDS, FLUSHED, QUEUED = 11, 1 << 28, 4_000_000
#: Others are timed that are modelled to take less than so many times as long as the default.
WORTH = 2
Case = tuple[int, int, int, int, str]


def function(case: Case) -> Any:
    """``C = A @ B`` of a case."""
    batch, m, n, k, layout = case
    a = te.placeholder((batch, m, k), name="A")
    b = te.placeholder((batch, n, k) if layout == "nt" else (batch, k, n), name="B")
    r = te.reduce_axis((0, k), name="k")
    c = te.compute(
        (batch, m, n),
        lambda g, i, j: te.sum(a[g, i, r] * (b[g, j, r] if layout == "nt" else b[g, r, j]), r),
        name="C",
    )
    return te.create_prim_func([a, b, c])


def ways(case: Case, every: str) -> dict[str, dict[str, int]]:
    """Configurations by name, the default first."""
    batch, m, n, k, layout = case
    found = {"default": fitting((m, n, k), batch, layout == "nt")}

    def modelled(config: dict[str, int]) -> float:
        tile = tuple(config[name] for name in NAMES[:-1])
        return cycles((m, n, k), batch, tile, 0.8, config["split_k"])

    for one in filter(None, every.split(",")):
        config = dict(zip(NAMES, map(int, one.replace("x", "/").split("/")), strict=True))
        if modelled(config) < WORTH * modelled(found["default"]):
            found[one] = config
    return found


def named(config: dict[str, int]) -> str:
    """``ROWSxCOLUMNS/ROWSxCOLUMNS OF A THREAD/TERMS/STAGES/SLICES``."""
    v = [config[name] for name in NAMES]
    return f"{v[0]}x{v[1]}/{v[2]}x{v[3]}/{v[4]}/{v[5]}/{v[6]}"


def build(case: Case, config: dict[str, int], folder: str, name: str) -> str:
    """Compile one kernel into a library; what failed, or its path."""
    target = tlx.cuda_target("sm_90a")
    try:
        sch = s_tir.Schedule(function(case))
        with target:
            multiply(sch, "C", config)
        path = os.path.join(folder, name + ".so")
        tvm.compile(sch.mod, target=target).export_library(path)
        return path
    except Exception as error:
        return f"{type(error).__name__} {str(error)[-300:]}"


def cold(call: Any, flush: Any) -> float:
    """Median microseconds of a call after the L2 cache was filled with something else."""
    import torch

    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)]
    call()
    torch.cuda._sleep(QUEUED)
    for begin, end in events:
        flush.zero_()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) * 1e3 for begin, end in events)


def measured(case: Case, paths: dict[str, str], flush: Any) -> dict[str, Any]:
    """Microseconds of each library and torch, and errors as shares of the largest result."""
    import torch

    batch, m, n, k, layout = case
    a = torch.randn((batch, m, k), device="cuda")
    b = torch.randn((batch, n, k) if layout == "nt" else (batch, k, n), device="cuda")
    right = b.transpose(-1, -2) if layout == "nt" else b
    want = a.double() @ right.double()
    out = torch.empty((batch, m, n), device="cuda")
    left = a if batch > 1 else a[0]
    beside = right if batch > 1 else right[0]
    times = {"torch": cold(lambda: torch.matmul(left, beside), flush)}
    errors = {"torch": float((torch.matmul(a, right) - want).abs().max() / want.abs().max())}
    for name, path in paths.items():
        if not path.endswith(".so"):
            print(case, name, path, flush=True)
            continue
        kernel = tvm.runtime.load_module(path)["main"]
        views = [tvm.runtime.from_dlpack(one) for one in (a, b, out)]
        out.fill_(float("nan"))
        call = on_stream(kernel, views)
        call()
        torch.cuda.synchronize()
        error = float(((out - want).abs().max() / want.abs().max()).nan_to_num(9))
        errors[name], times[name] = error, cold(call, flush)
    return {"case": case, "us": times, "error": errors}


def told(rows: list[dict[str, Any]]) -> str:
    """The default, and the fastest of ours, beside torch."""
    lines, ratios = [], []
    for row in rows:
        us = row["us"]
        batch, m, n, k, layout = row["case"]
        ours = {name: one for name, one in us.items() if name != "torch"}
        ordered = sorted(ours, key=ours.__getitem__)
        best = us.get("default", float("nan"))
        ratios.append(us["torch"] / best)
        tflops = 2e-6 * batch * m * n * k / best
        worst = max(one for name, one in row["error"].items() if name != "torch")
        fastest = " ".join(f"{name}:{ours[name]:.1f}" for name in ordered[:6])
        sizes = f"{batch}x{m}x{n}x{k} {layout}"
        numbers = [f"{us['torch']:.1f}", f"{best:.1f}", f"{tflops:.1f}"]
        numbers += [f"{ratios[-1]:.2f}", f"{worst:.0e}"]
        lines.append([sizes, *numbers, named(row["default"]), fastest])
    mean = exp(statistics.fmean(map(log, ratios)))
    heads = ["", "torch us", "ours us", "TFLOPS", "ratio", "error", "default", "fastest"]
    return columns(heads, lines) + f"\ngeometric mean {mean:.3f}"


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Numbers of cases, with commas between.")] = "",
    every: Annotated[str, typer.Option(help="ROWSxCOLUMNS/THREAD/DEPTH/STAGES/SLICES, ...")] = "",
    workers: Annotated[int, typer.Option(help="Processes that compile.")] = 24,
    dry_run: Annotated[bool, typer.Option(help="Build everything, run nothing.")] = False,
) -> None:
    """Build all kernels, then time one after the other."""
    cases = [CASES[int(i)] for i in only.split(",")] if only else list(CASES)
    tried = [(case, ways(case, every)) for case in cases]
    spawned = get_context("spawn")  # A fork of a process that knows the GPU cannot use it.
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(workers, spawned) as pool:
        jobs = {
            (at, name): pool.submit(build, case, way, folder, f"{at}_{i}")
            for at, (case, found) in enumerate(tried)
            for i, (name, way) in enumerate(found.items())
        }
        paths = {key: job.result() for key, job in jobs.items()}
        if dry_run:
            print("\n".join(f"{key} {path}" for key, path in paths.items()))
            return
        import torch

        torch.backends.cuda.matmul.allow_tf32 = False
        flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
        rows = []
        for at, (case, found) in enumerate(tried):
            row = measured(case, {name: paths[at, name] for name in found}, flush)
            row["default"] = found["default"]
            rows.append(row)
            if out is not None:
                out.write_text(json.dumps({**provenance("float32"), "rows": rows}, indent=1))
        print(told(rows), flush=True)


if __name__ == "__main__":
    typer.run(main)
