"""Compare the simulated GPU's memory counters with Nsight Compute's, kernel by kernel.

``python -m benchmarks.counters`` simulates every kernel of :mod:`benchmarks.kernels`, profiles it
with ``ncu`` where a GPU and ncu are there, and prints both columns. Sectors and shared-memory
wavefronts must be equal; ``data_bank_conflicts`` also counts arbitration and is only recorded.
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

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.kernels import KERNELS
from tvm_layout_ext import _compat, build, device_program
from tvm_layout_ext.simulate import simulate

#: Our name -> Nsight Compute's. The smsp__sass ones attribute wavefronts to the instruction.
METRICS = {
    "global load sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global store sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "shared load wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared store wavefronts": "smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
}
_NOISY = {
    "load": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "store": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
}
app = typer.Typer(add_completion=False)


def simulated(name: str) -> dict[str, int]:
    """Counters of the simulated GPU; also checks the result against NumPy."""
    kernel = KERNELS[name]()
    report = simulate(kernel.schedule.to_module(kernel.args, "main"), *kernel.inputs, None)
    (output,) = report.outputs.values()
    np.testing.assert_allclose(output, kernel.expected, rtol=1e-5, atol=1e-4)
    assert not report.hazards, report.hazards
    counts = dict.fromkeys(METRICS, 0)
    for access in report.accesses:
        if access.scope == "global":
            counts[f"global {access.kind} sectors"] += access.sectors
        elif access.scope.startswith("shared"):
            counts[f"shared {access.kind} wavefronts"] += access.wavefronts
    return counts


def launch(name: str) -> None:
    """Build one kernel, run it once on the GPU and check its result."""
    import tvm

    kernel = KERNELS[name]()
    run = build(kernel.schedule, kernel.args)
    device = tvm.cuda(0)
    arrays = [tvm.runtime.tensor(a, device) for a in kernel.inputs]
    poison = np.full(kernel.expected.shape, np.nan, kernel.expected.dtype)
    out = tvm.runtime.tensor(poison, device)
    run["main"](*arrays, out)
    device.sync()
    np.testing.assert_allclose(out.numpy(), kernel.expected, rtol=1e-5, atol=1e-4)


def profiled(names: list[str]) -> dict[str, dict[str, int]]:
    """Nsight Compute's counters of each kernel, from one process that launches them in order."""
    metrics = ",".join([*METRICS.values(), *_NOISY.values()])
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", "regex:main_kernel", "--metrics", metrics,
        sys.executable, "-m", "benchmarks.counters", "launch", *names,
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    if out.returncode:
        raise RuntimeError(f"ncu failed with {out.returncode}:\n{out.stdout}\n{out.stderr}")
    rows = parse(out.stdout, METRICS | {f"conflicts {k} (noisy)": v for k, v in _NOISY.items()})
    if len(rows) != len(names):
        raise RuntimeError(f"ncu saw {len(rows)} kernels where {len(names)} were launched.")
    return dict(zip(names, rows, strict=True))


def parse(output: str, metrics: dict[str, str]) -> list[dict[str, int]]:
    """Counters of each kernel in ncu's raw CSV page, under our names for them."""
    quoted = "\n".join(line for line in output.splitlines() if line.startswith('"'))
    rows = [row for row in csv.DictReader(io.StringIO(quoted)) if row["ID"].isdigit()]
    return [
        {ours: int(float(row[theirs].replace(",", ""))) for ours, theirs in metrics.items()}
        for row in rows
    ]


def _table(sim: dict[str, dict[str, int]], ncu: dict[str, dict[str, int]]) -> Table:
    table = Table("kernel", "counter", "simulated", "ncu", "equal")
    for name, counts in sim.items():
        for counter, count in counts.items():
            real = ncu.get(name, {}).get(counter)
            same = "" if real is None else ("yes" if real == count else "NO")
            table.add_row(name, counter, f"{count:,}", "-" if real is None else f"{real:,}", same)
    return table


def environment() -> dict[str, Any]:
    """Versions of what measured, and the device."""
    info: dict[str, Any] = {"tvm": _compat.tvm_version()}
    for tool, command in {
        "ncu": ["ncu", "--version"],
        "gpu": ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
    }.items():
        if shutil.which(command[0]):
            out = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            info[tool] = out.strip().splitlines()[-1]
    return info


@app.command()
def compare(
    names: Annotated[list[str] | None, typer.Argument(help="Kernels; all by default.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the raw counters here, as JSON.")] = None,
) -> None:
    """Print simulated and profiled counters side by side; exit 1 if any pair differs."""
    chosen = names or list(KERNELS)
    console = Console(width=110)
    sim = {name: simulated(name) for name in chosen}
    ncu: dict[str, dict[str, int]] = {}
    if shutil.which("ncu") and _compat.has_gpu():
        ncu = profiled(chosen)
    else:
        console.print("Only simulated: this machine has no CUDA GPU or no ncu on its PATH.")
    console.print(_table(sim, ncu))
    if out is not None:
        record = {"environment": environment(), "simulated": sim, "ncu": ncu}
        out.write_text(json.dumps(record, indent=1) + "\n")
    wrong = [n for n in ncu if any(ncu[n][c] != count for c, count in sim[n].items())]
    if wrong:
        console.print(f"Different: {', '.join(wrong)}")
        raise typer.Exit(1)


@app.command("launch", hidden=True)
def launch_command(names: list[str]) -> None:
    """Run kernels once each, for the profiler."""
    for name in names:
        launch(name)


@app.command()
def sources(names: list[str]) -> None:
    """Print the CUDA of kernels."""
    for name in names:
        kernel = KERNELS[name]()
        print(build(kernel.schedule, kernel.args).mod.imports[0].inspect_source())
        assert device_program(kernel.schedule, kernel.args)


if __name__ == "__main__":
    app()
