"""Time kernels that only move memory beside torch eager, torch.compile and Triton, in one process.

``python -m benchmarks.memory_bound time --out FILE`` needs a CUDA GPU, torch, Triton and nvcc.
Every row has the speed of the best plain copy, or for sums of the best read, of as many bytes:
torch's copy, our own, and the hand-written kernels of ``limits.cu`` in the configurations that are
fastest on these very bytes. All kernels of a row take turns, so that the clock's drift hits all
alike. Before each, a gigabyte of other memory is read: the second-level cache then holds none of
the operands and nothing that is yet to be written, and the host is ahead of the GPU, so that
launching is not timed. Raw times and medians of CUDA events are written.

``python -m benchmarks.memory_bound counters --out FILE`` reads sectors and shared wavefronts of our
kernels from Nsight Compute, beside the simulated GPU's; see :mod:`benchmarks.memory_counters`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer

import tvm_layout_ext as tlx
from benchmarks import counters, limits, memory_counters
from benchmarks.cubin import Cubin, compiled
from benchmarks.memory_rows import ROWS, Row, copied, schedule
from tvm_layout_ext import _compat

#: Runs before timing, timed runs, and timed runs of a limit before the best are chosen.
WARM_UP, REPEATS, TRIALS = 3, 101, 15
#: Limits that take part in the timing of a row.
BEST = 3
#: Bytes read before each timed run: many times the 50 MiB of an H200's second-level cache.
FLUSH_BYTES = 1 << 30
_PEERS = ("torch eager", "torch.compile", "triton")
Call = Callable[[], Any]


class Bench:
    """What all rows share: the limits' kernels, and the memory that is read between runs."""

    def __init__(self) -> None:
        import torch

        major, minor = torch.cuda.get_device_capability()
        self._flush = draw((FLUSH_BYTES // 4,), "float32")
        self._sink = torch.zeros(4, dtype=torch.int32, device="cuda")
        self.cubin = Cubin(compiled(limits.SOURCE, f"sm_{major}{minor}"))
        self.flush = self.reader(limits.Limit("read", 8, 256, stays=False), self._flush)

    def reader(self, limit: limits.Limit, source: Any) -> Call:
        """Bind a limit that reads."""
        return limits.launcher(self.cubin, limit, source, self._sink)

    def seconds(self, calls: dict[str, Call], repeats: int = REPEATS) -> dict[str, list[float]]:
        """Seconds of each run of each call; they take turns."""
        import torch

        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(WARM_UP + repeats):
            for name, call in calls.items():
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.flush()
                begin.record()
                call()
                end.record()
                end.synchronize()
                if turn >= WARM_UP:
                    times[name].append(begin.elapsed_time(end) / 1e3)
        return times

    def medians(self, calls: dict[str, Call], repeats: int = REPEATS) -> dict[str, float]:
        """Median seconds of each call."""
        return {name: statistics.median(t) for name, t in self.seconds(calls, repeats).items()}

    def reads(self, size: int) -> dict[str, Call]:
        """Bind every configuration that reads ``size`` bytes."""
        source = draw((size // 4,), "float32")
        return {limit.name: self.reader(limit, source) for limit in limits.READS}

    def copies(self, size: int, *, ours: bool = True) -> dict[str, Call]:
        """Bind every kernel that copies ``size`` bytes in all: half are read, half written."""
        import torch

        source = draw((size // 32 * 4,), "float32")
        target = torch.empty_like(source)
        calls: dict[str, Call] = {"limit: torch copy": lambda: target.copy_(source)}
        if ours:
            kernel = built(copied(tuple(source.shape), "float32"))
            views = [tvm.runtime.from_dlpack(tensor) for tensor in (source, target)]
            calls["limit: our copy"] = lambda: kernel(*views)
        return calls | {
            limit.name: limits.launcher(self.cubin, limit, source, target)
            for limit in limits.COPIES
        }

    def limits(self, row: Row) -> tuple[dict[str, Call], dict[str, float]]:
        """Pick the best limits for a row; also the first times of all of them."""
        every = self.reads(row.bytes()) if row.is_sum else self.copies(row.bytes())
        first = self.medians(every, TRIALS)
        return {name: every[name] for name in sorted(first, key=first.__getitem__)[:BEST]}, first


def built(tensors: list[Any]) -> Any:
    """Build what auto_coalesce makes of a computation."""
    return tlx.build(schedule(tensors), tensors)["main"]


def draw(shape: tuple[int, ...], dtype: str, below: int | None = None) -> Any:
    """Random values, for the speed of memory depends on what is moved; or numbers below a bound."""
    import torch

    kind = getattr(torch, dtype)
    if kind.is_floating_point:
        return torch.randn(shape, dtype=kind, device="cuda")
    low, high = (torch.iinfo(kind).min, torch.iinfo(kind).max) if below is None else (0, below)
    return torch.randint(low, high, shape, dtype=kind, device="cuda")


def drawn(row: Row) -> list[Any]:
    """Inputs of a row; integers after the first are row numbers of the first."""
    first, *rest = row.shapes()[:-1]
    return [draw(*first), *(draw(shape, dtype, first[0][0]) for shape, dtype in rest)]


def contestants(row: Row, kernels: Any, inputs: list[Any]) -> dict[str, Call]:
    """Ours and the peers on the same inputs, each verified on a poisoned output first."""
    import torch

    want = row.torch(*inputs)
    compiled_torch = compiled_by_torch(row.torch)
    ours = built(row.tensors())
    outputs = {name: torch.empty_like(want) for name in ("ours", "triton")}
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, outputs["ours"])]
    calls: dict[str, Call] = {
        "ours": lambda: ours(*views),
        "torch eager": lambda: row.torch(*inputs),
        "torch.compile": lambda: compiled_torch(*inputs),
        "triton": lambda: row.triton(kernels, *inputs, outputs["triton"]),
    }
    for output in outputs.values():
        output.fill_(float("nan") if output.is_floating_point() else 85)
    for name, call in calls.items():
        got = call()
        torch.cuda.synchronize()
        check(name, row, outputs.get(name, got), want)
    return calls


def run(row: Row, kernels: Any, bench: Bench) -> dict[str, Any]:
    """Verify and time one row."""
    chosen, first = bench.limits(row)
    calls = contestants(row, kernels, drawn(row))
    times = bench.seconds(calls | chosen)
    return summary(row, times, first)


def summary(row: Row, times: dict[str, list[float]], first: dict[str, float]) -> dict[str, Any]:
    """Everything about a row that is written: raw times, medians, speeds and ratios."""
    size = row.bytes()
    median = {name: statistics.median(values) for name, values in times.items()}
    limit = min(t for name, t in median.items() if name.startswith("limit"))
    return {
        "name": row.name,
        "tensors": row.shapes(),
        "bytes": size,
        "times": times,
        "seconds": median,
        "tb_per_s": {name: size / t / 1e12 for name, t in median.items()},
        "limits_tried_tb_per_s": {name: size / t / 1e12 for name, t in first.items()},
        "of_limit": limit / median["ours"],
        "of_best_peer": min(median[name] for name in _PEERS) / median["ours"],
    }


def check(name: str, row: Row, got: Any, want: Any) -> None:
    """Stop at a wrong result; sums may differ in the last bits."""
    import torch

    tolerance = {"rtol": 1e-3, "atol": 0.1} if row.is_sum else {"rtol": 0.0, "atol": 0.0}
    if not torch.allclose(got.float(), want.float(), **tolerance):
        raise SystemExit(f"{name} computes {row.name} wrongly.")


def table(results: list[dict[str, Any]]) -> str:
    """One line a row, in TB/s."""
    names = ("ours", *_PEERS)
    lines = [f"{'TB/s':26}" + "".join(f"{n:>15}" for n in (*names, "limit", "of limit", "of best"))]
    for result in results:
        speed = result["tb_per_s"]
        limit = max(value for name, value in speed.items() if name.startswith("limit"))
        cells = [*(f"{speed[name]:.2f}" for name in names), f"{limit:.2f}"]
        cells += [f"{result['of_limit']:.3f}", f"{result['of_best_peer']:.3f}"]
        lines.append(f"{result['name']:26}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def compiled_by_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by torch, which of more than 8 programs of one code object compiles none."""
    import torch

    torch._dynamo.reset()
    made: Callable[..., Any] = torch.compile(function, dynamic=False)
    return made


def provenance(module: str = "memory_bound") -> dict[str, Any]:
    """What ran where: the command, the versions, and the revision if the caller names it."""
    import torch
    import triton

    return {
        "command": " ".join([f"python -m benchmarks.{module}", *sys.argv[1:]]),
        "revision": os.environ.get("TVM_LAYOUT_EXT_GIT_ID", "unknown"),
        "environment": counters.environment(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        },
    }


def named(only: str) -> list[Row]:
    """Rows whose name contains a text."""
    found = [row for name, row in ROWS.items() if only in name]
    if not found:
        raise typer.BadParameter(f"no row is named like {only!r}; there are {', '.join(ROWS)}")
    return found


app = typer.Typer(add_completion=False, no_args_is_help=True)
Out = Annotated[Path, typer.Option(help="Write the raw results here, as JSON.")]
Only = Annotated[str, typer.Option(help="Only rows whose name contains this.")]


@app.command("time")
def time_command(out: Out, only: Only = "") -> None:
    """Time every row; print the table."""
    import torch

    from benchmarks import triton_memory_bound as kernels

    bench = Bench()
    results: list[dict[str, Any]] = []
    for row in named(only):
        results.append(run(row, kernels, bench))
        torch.cuda.empty_cache()
        # After each row: a run that is cut off leaves what it has.
        out.write_text(json.dumps({**provenance(), "rows": results}, indent=1) + "\n")
    print(table(results))


@app.command("counters")
def counters_command(out: Out, only: Only = "", simulate: bool = True) -> None:
    """Count by Nsight Compute and by the simulated GPU; what FILE holds of others stays."""
    known = json.loads(out.read_text()) if out.exists() else None
    record = memory_counters.collect(named(only), known, simulate=simulate)
    if _compat.has_gpu():
        record |= provenance()
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(memory_counters.table(record))


@app.command("launch", hidden=True)
def launch_command(names: list[str]) -> None:
    """Run our kernel of each row once, for the profiler."""
    import torch

    for name in names:
        row = ROWS[name]
        inputs = drawn(row)
        (shape, dtype) = row.shapes()[-1]
        out = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
        built(row.tensors())(*(tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, out)))
        torch.cuda.synchronize()
        check("ours", row, out, row.torch(*inputs))


if __name__ == "__main__":
    app()
