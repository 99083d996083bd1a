"""Nsight Compute's memory counters of kernels that others scheduled, beside the simulated GPU's.

``python -m benchmarks.foreign_counters --out FILE`` builds every case of
:mod:`benchmarks.foreign_kernels`, launches each once under ``ncu``, and writes the counters of
each kernel; without a GPU it prints what the simulated GPU counts.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import counters
from benchmarks.foreign_kernels import CASES, arrays, module
from tvm_layout_ext import _compat, build

METRICS = counters.METRICS | {
    "global load requests": "smsp__inst_executed_op_global_ld.sum",
    "global store requests": "smsp__inst_executed_op_global_st.sum",
    "shared load requests": "smsp__inst_executed_op_shared_ld.sum",
    "shared store requests": "smsp__inst_executed_op_shared_st.sum",
    "local load requests": "smsp__inst_executed_op_local_ld.sum",
    "local store requests": "smsp__inst_executed_op_local_st.sum",
}
app = typer.Typer(add_completion=False)


def launch(names: list[str], sources: Path | None) -> None:
    """Build kernels by several threads, then run each once."""
    import tvm

    device = tvm.cuda(0)
    mods = {name: module(name) for name in names}
    with ThreadPoolExecutor(8) as pool:
        built = dict(zip(names, pool.map(build, mods.values()), strict=True))
    for name, run in built.items():
        if sources is not None:
            (sources / f"{name}.cu").write_text(run.mod.imports[0].inspect_source())
        run[name](*(tvm.runtime.tensor(a, device) for a in arrays(name)))
        device.sync()


def parse(output: str) -> dict[str, dict[str, int]]:
    """Counters of each kernel by its name, summed over its launches."""
    quoted = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(io.StringIO(quoted)):
        if not row["ID"].isdigit():
            continue
        kernel = row["Kernel Name"].partition("(")[0]
        counts = found.setdefault(kernel, dict.fromkeys(["launches", *METRICS], 0))
        counts["launches"] += 1
        for ours, theirs in METRICS.items():
            counts[ours] += int(float(row[theirs].replace(",", "")))
    return found


def profiled(names: list[str], sources: Path | None) -> dict[str, dict[str, int]]:
    """Nsight Compute's counters, from one process that launches all kernels."""
    kept = ["--sources", str(sources)] if sources else []
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--metrics", ",".join(METRICS.values()),
        sys.executable, "-m", "benchmarks.foreign_counters", "launch", *kept, *names,
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        raise RuntimeError(f"ncu failed with {out.returncode}:\n{out.stdout}\n{out.stderr}")
    return parse(out.stdout)


@app.command()
def compare(
    names: Annotated[list[str] | None, typer.Argument(help="Cases; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the counters here, as JSON.")] = None,
    sources: Annotated[Path | None, typer.Option(help="Write the CUDA into this folder.")] = None,
) -> None:
    """Profile, where a GPU and ncu are there, and print the counters."""
    if not (shutil.which("ncu") and _compat.has_gpu()):
        raise typer.BadParameter("This machine has no CUDA GPU, or no ncu on its PATH.")
    found = profiled(names or list(CASES), sources)
    for kernel, counts in found.items():
        print(f"{kernel:28}", *counts.values())
    if out is not None:
        record: dict[str, Any] = {"environment": counters.environment(), "ncu": found}
        out.write_text(json.dumps(record, indent=1) + "\n")


@app.command("launch", hidden=True)
def launch_command(
    names: list[str], sources: Annotated[Path | None, typer.Option()] = None
) -> None:
    """Run cases once each, for the profiler."""
    launch(names, sources)


if __name__ == "__main__":
    app()
