"""Nsight Compute's memory counters of kernels that others scheduled, beside the simulated GPU's.

``python -m benchmarks.foreign_counters compare --out FILE`` builds every case of
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
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import counters
from benchmarks.foreign_kernels import CASES, arrays, module
from tvm_layout_ext import _compat, build, simulate
from tvm_layout_ext.simulate import Report

app = typer.Typer(add_completion=False)


def launch(names: list[str], sources: Path | None) -> None:
    """Build kernels and run each once."""
    import tvm

    device = tvm.cuda(0)
    for name in names:
        run = build(module(name))
        if sources is not None:
            (sources / f"{name}.cu").write_text(run.mod.imports[0].inspect_source())
        run[name](*(tvm.runtime.tensor(a, device) for a in arrays(name)))
        device.sync()


def counted(report: Report) -> dict[str, dict[str, list[int]]]:
    """Counters of each kernel on the simulated GPU: the least, and what is counted."""
    found: dict[str, dict[str, list[int]]] = {}
    for access in report.accesses:
        counts = found.setdefault(access.kernel, {one: [0, 0] for one in counters.METRICS})
        scope, kind = access.scope.partition(".")[0], access.kind
        number = "sectors" if scope == "global" else "wavefronts"
        whole, free = getattr(access, number), getattr(access, f"open_{number}")
        pair = counts[f"{scope} {kind} {number}"]
        pair[0], pair[1] = pair[0] + whole - free, pair[1] + whole
    return found


def parse(output: str) -> dict[str, dict[str, int]]:
    """Counters of each kernel by its name, summed over its launches."""
    quoted = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    found: dict[str, dict[str, int]] = {}
    for row in csv.DictReader(io.StringIO(quoted)):
        if not row["ID"].isdigit():
            continue
        kernel = row["Kernel Name"].partition("(")[0]
        counts = found.setdefault(kernel, dict.fromkeys(["launches", *counters.METRICS], 0))
        counts["launches"] += 1
        for ours, theirs in counters.METRICS.items():
            counts[ours] += int(float(row[theirs].replace(",", "")))
    return found


def profiled(names: list[str], sources: Path | None) -> dict[str, dict[str, int]]:
    """Nsight Compute's counters, from one process that launches all kernels."""
    kept = ["--sources", str(sources)] if sources else []
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--metrics", ",".join(counters.METRICS.values()),
        sys.executable, "-m", "benchmarks.foreign_counters", "launch", *kept, *names,
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        print(f"ncu failed with {out.returncode}:\n{out.stdout[-4000:]}\n{out.stderr[-4000:]}")
    return parse(out.stdout)


@app.command()
def compare(
    names: Annotated[list[str] | None, typer.Argument(help="Cases; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the counters here, as JSON.")] = None,
    sources: Annotated[Path | None, typer.Option(help="Write the CUDA into this folder.")] = None,
) -> None:
    """Print the least and the most that is simulated, and ncu's counter where there is a GPU."""
    chosen = names or list(CASES)
    has_gpu = shutil.which("ncu") and _compat.has_gpu()
    found = profiled(chosen, sources) if has_gpu else {}
    for name in chosen:
        for kernel, counts in counted(simulate(module(name), *arrays(name))).items():
            for counter, (least, most) in counts.items():
                real = found.get(kernel, {}).get(counter, "-")
                print(f"{kernel:24}{counter:24}{least:>10}{most:>10}{real:>10}")
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
