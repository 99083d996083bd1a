"""Time fp32 transposes beside a copy of the same bytes and PyTorch's transposes, in one process.

``python -m benchmarks.transpose compare --size 16384 --log tuning_logs --out FILE`` builds a naive,
a padded, the default and the tuned kernel, checks every output bit for bit, and times all of them
with CUDA events, interleaved, so that drift of the clocks meets every one alike. With ``--ncu`` it
also reads the tuned kernel's counters; the least possible are known by construction: a transpose of
N bytes needs N / 32 sectors a side, and one shared wavefront for 128 bytes of 4-byte accesses.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import counters
from benchmarks.kernels import transpose as tiled_transpose
from tvm_layout_ext import build
from tvm_layout_ext.schedules import transpose as ready
from tvm_layout_ext.tune.apply.replay import best_records
from tvm_layout_ext.tune.records.log import Log, Record

Run = Callable[[], Any]
ROUNDS = 25


def tuned_record(log: Path, size: int) -> Record:
    """The best measured fp32 record for a size."""
    for record in best_records(Log(log).read().records):
        work = record.workload
        same = (work.operator, work.dtype, work.shape) == ("transpose", "float32", (size, size))
        if same and record.runner == "cuda":
            return record
    raise typer.BadParameter(f"{log} holds no measured fp32 transpose of {size}x{size}.")


def _ready_kernel(size: int, config: Any) -> Any:
    tensors = ready.compute((size, size), "float32")
    return build(ready.schedule(tensors, config), tensors)


def _kernels(size: int, record: Record) -> dict[str, Any]:
    default = {knob.name: knob.default for knob in ready.KNOBS}
    made = {"32x32 tile": 0, "32x32 tile, storage_align(32, 1)": 1}
    tiled = {name: tiled_transpose("float32", pad, size) for name, pad in made.items()}
    return {
        **{name: build(kernel.schedule, kernel.args) for name, kernel in tiled.items()},
        "schedules/transpose.py, default": _ready_kernel(size, default),
        "schedules/transpose.py, tuned": _ready_kernel(size, record.config),
    }


def _time(runs: dict[str, Run]) -> dict[str, list[float]]:
    """Seconds of each run, one of each a round."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 3):
        for name, run in runs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            run()
            end.record()
            end.synchronize()
            if turn >= 3:
                times[name].append(start.elapsed_time(end) * 1e-3)
    return times


def _checked_runs(size: int, kernels: dict[str, Any]) -> dict[str, Run]:
    """Every contestant on the same random input, its poisoned output checked first."""
    import torch
    import tvm

    a = torch.randn(size, size, device="cuda")
    out = torch.empty_like(a)
    compiled = torch.compile(lambda x: x.t().contiguous())
    source, target = tvm.runtime.from_dlpack(a), tvm.runtime.from_dlpack(out)
    runs: dict[str, Run] = {"torch eager": lambda: out.copy_(a.t())}
    for name, kernel in kernels.items():
        runs[name] = lambda entry=kernel["main"]: entry(source, target)
    for name, run in runs.items():
        out.fill_(float("nan"))
        run()
        torch.cuda.synchronize()
        if not torch.equal(out, a.t()):
            raise AssertionError(f"{name} gave a wrong transpose")
    if not torch.equal(compiled(a), a.t()):
        raise AssertionError("torch.compile gave a wrong transpose")
    return {"copy (torch)": lambda: out.copy_(a), **runs, "torch.compile": lambda: compiled(a)}


def _profile(size: int, log: Path) -> dict[str, int]:
    """Nsight Compute's counters of the tuned kernel."""
    command = [
        "ncu", "--clock-control", "none", "--csv", "--page", "raw", "--print-units", "base",
        "--kernel-name", "regex:main_kernel", "--metrics", ",".join(counters.METRICS.values()),
        sys.executable, "-m", "benchmarks.transpose", "launch",
        "--size", str(size), "--log", str(log),
    ]  # fmt: skip
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return counters.parse(out, counters.METRICS)[0]


app = typer.Typer(add_completion=False)
Size = Annotated[int, typer.Option(help="Rows and columns.")]
LogOption = Annotated[Path, typer.Option(help="Log with a measured record of this size.")]


@app.command()
def launch(size: Size = 16384, log: LogOption = Path("tuning_logs")) -> None:
    """Run the tuned kernel once, for the profiler."""
    import torch
    import tvm

    kernel = _ready_kernel(size, tuned_record(log, size).config)
    a = torch.randn(size, size, device="cuda")
    out = torch.empty_like(a)
    kernel["main"](tvm.runtime.from_dlpack(a), tvm.runtime.from_dlpack(out))
    torch.cuda.synchronize()
    if not torch.equal(out, a.t()):
        raise AssertionError("the tuned kernel gave a wrong transpose")


@app.command()
def compare(
    size: Size = 16384,
    log: LogOption = Path("tuning_logs"),
    out: Annotated[Path | None, typer.Option(help="Write the raw times here, as JSON.")] = None,
    ncu: Annotated[bool, typer.Option("--ncu", help="Read the tuned kernel's counters.")] = False,
) -> None:
    """Time every contestant; print medians and ratios to the copy."""
    record = tuned_record(log, size)
    times = _time(_checked_runs(size, _kernels(size, record)))
    medians = {name: statistics.median(values) for name, values in times.items()}
    copy = medians["copy (torch)"]
    table = Table("fp32 transpose", "median ms", "TB/s", "of the copy")
    for name, median in medians.items():
        rate = 2 * size * size * 4 / median / 1e12
        table.add_row(name, f"{median * 1e3:.3f}", f"{rate:.2f}", f"{copy / median:.3f}")
    Console(width=100).print(table)
    result: dict[str, Any] = {
        "environment": counters.environment(),
        "size": size,
        "config": record.config,
        "seconds": times,
    }
    if ncu:
        result["ncu"] = _profile(size, log)
        result["least"] = dict.fromkeys(counters.METRICS, size * size * 4 // 32)
        for name in ("shared load wavefronts", "shared store wavefronts"):
            result["least"][name] = size * size * 4 // 128
        print(f"tuned kernel by ncu: {result['ncu']}\nleast possible: {result['least']}")
    if out is not None:
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    app()
