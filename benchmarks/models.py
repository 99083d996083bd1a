"""Time whole models: ours beside dlight, torch eager and torch.compile.

``python -m benchmarks.models --out FILE`` needs a CUDA GPU and torch; ``--dry-run`` builds
everything without either. Each model is compiled by ``tlx.relax_pipeline`` and by TVM's own
pipeline for CUDA, and runs as a whole, in a process of its own beside its peers. Kernel times are
those of torch's profiler, summed: of each name the median over the runs, times how often a run
launches it. Outputs are compared with torch in float32; torch's own error in the model's type
stands beside.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer
from tvm import relax
from tvm.target import Target

import tvm_layout_ext as tlx
from benchmarks.memory_bound import provenance
from benchmarks.model_zoo import MODELS, Model
from tvm_layout_ext.text import columns

#: Builds a model of a name: what is told of that, and what runs it, by contestant.
Prepare = Callable[[str], tuple[dict[str, Any], dict[str, Callable[[], Any]]]]
#: Measures a model of a name by its calls.
Measure = Callable[[str, dict[str, Callable[[], Any]]], dict[str, Any]]
#: Runs before, and while, kernels are counted.
WARM_UP, REPEATS, FEW = 2, 15, 3
#: Seconds after which whoever waits for the others gives up.
WAIT = 400
#: Functions of a model that are told, the slowest first.
TOLD = 12


#: Words that a text has where nothing tells how many a model knows.
_TOKENS = 1000


def built(
    model: Model, target: Target, graphs: bool = False
) -> tuple[dict[str, Any], dict[str, str], dict[str, float]]:
    """Executables of both pipelines, what ours chose by function, and seconds of compilation.

    ``graphs`` lets them capture CUDA graphs.
    """
    schedule = tlx.DefaultSchedule()
    pipelines = {
        "ours": tlx.relax_pipeline(target, schedule),
        "dlight": relax.pipeline.get_default_pipeline(target),
    }
    found, seconds = {}, {}
    for name, pipeline in pipelines.items():
        begin = time.perf_counter()
        try:
            with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
                found[name] = tvm.compile(model.module, target=target, relax_pipeline=pipeline)
        except (AssertionError, RuntimeError, ValueError, tlx.ScheduleError) as error:
            print(
                f"{name} does not compile: {type(error).__name__} {str(error)[-300:]}", flush=True
            )
        seconds[name] = time.perf_counter() - begin
    return found, {one.name: f"{one.rule}: {one.text}" for one in schedule.choices}, seconds


def inputs_of(model: Model) -> list[np.ndarray]:
    """Values of a size with which no layer overflows; parameters are scaled by their rows."""
    rng = np.random.default_rng(0)
    found = []
    for at, (shape, dtype) in enumerate(model.inputs):
        if dtype == "uint32":
            found.append(rng.integers(0, 1 << 32, shape).astype(dtype))
        elif "int" in dtype:
            most = model.inputs[1][0][0] if len(model.inputs) > 1 else _TOKENS
            found.append(rng.integers(0, most, shape).astype(dtype))
        else:
            scale = 1 if at == 0 or len(shape) == 1 else float(np.prod(shape[1:])) ** -0.5
            # Of packed weights, which are up to 8, a scale counts for 32.
            scale *= 0.04 if model.inputs[at - 1][1] == "uint32" else 1
            found.append((rng.standard_normal(shape, np.float32) * scale).astype(dtype))
    return found


def profile(call: Callable[[], Any], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Microseconds of each kernel of a run, summed by its name, one number a run.

    Where kernels overlap, as one that starts early and waits for the one before, the time is that
    of the earlier alone.
    """
    import torch
    from torch.profiler import ProfilerActivity

    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as prof:
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
    on_device = torch.autograd.DeviceType.CUDA
    events = [
        (one.time_range.start, one.device_time_total, one.name)
        for one in prof.events()
        if one.device_type == on_device
    ]
    times: dict[str, list[float]] = defaultdict(list)
    busy_until = 0.0
    for start, length, name in sorted(events):
        end = start + length
        times[name].append(max(0.0, end - max(start, busy_until)))
        busy_until = max(busy_until, end)
    runs: dict[str, list[float]] = {}
    for name, found in times.items():
        each = max(1, len(found) // repeats)
        runs[name] = [sum(found[i : i + each]) for i in range(0, len(found), each)]
    return runs


def captured(step: Callable[..., Any], *given: Any) -> Callable[[], Any]:
    """A call whose launches a graph repeats, of tensors that are written to before each."""
    import torch

    graph = torch.cuda.CUDAGraph()
    for _ in range(3):
        step(*given)
    with torch.cuda.graph(graph):
        result = step(*given)

    return partial(_replayed, graph, result, step)


def _replayed(graph: Any, result: Any, _step: Any) -> Any:
    """What a graph writes; its kernels are there as long as the step whose they are."""
    graph.replay()
    return result


def wall(call: Callable[[], Any]) -> float:
    """Median microseconds of a run, launches included."""
    import torch

    times = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e6


def in_turn(call: Callable[[], Any], repeats: int, rounds: int) -> float:
    """Median microseconds of a call among several, one after another, with all Python does."""
    import torch

    walls = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        walls.append((time.perf_counter() - begun) / repeats * 1e6)
    return statistics.median(walls)


def elapsed(call: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Median microseconds of a call by the GPU's clock."""
    import torch

    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def calls_of(
    model: Model, executables: dict[str, Any], mode: str | None = None
) -> dict[str, Callable[[], Any]]:
    """What runs a model, by contestant; a torch tensor comes out of each.

    ``mode`` is that of torch.compile, which is given packed weights as they are, too.
    """
    import torch

    arrays = inputs_of(model)
    # Few operators of torch take its uint32.
    signed = [a.view(np.int32) if a.dtype == np.uint32 else a for a in arrays]
    tensors = [torch.from_numpy(a).cuda() for a in signed]
    views = [
        tvm.runtime.tensor(a, tvm.cuda(0)) if a.dtype == np.uint32 else tvm.runtime.from_dlpack(t)
        for a, t in zip(arrays, tensors, strict=True)
    ]

    def vm_call(executable: Any) -> Callable[[], Any]:
        main = relax.VirtualMachine(executable, tvm.cuda(0))["main"]
        return lambda: main(*views)

    def compiled(function: Callable[..., Any], given: list[Any]) -> Callable[[], Any]:
        for tensor in given if mode else ():
            # Its CUDA graphs would copy whatever is no parameter of a module, weights too.
            torch._dynamo.mark_static_address(tensor)
        fast = torch.compile(function, dynamic=False, mode=mode)
        return lambda: fast(*given)

    calls: dict[str, Callable[[], Any]] = {n: vm_call(e) for n, e in executables.items()}
    if (unpacked := model.unpacked) is not None:
        packed, tensors = tensors, list(unpacked(torch, *tensors))
        calls["torch.compile, packed"] = compiled(
            lambda *a: model.torch(torch, *unpacked(torch, *a)), packed
        )
    calls["torch eager"] = lambda: model.torch(torch, *tensors)
    calls["torch.compile"] = compiled(lambda *a: model.torch(torch, *a), tensors)
    wide = [t.float() if t.is_floating_point() else t for t in tensors]
    calls["float32"] = lambda: model.torch(torch, *wide)
    return calls


def errors_of(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Largest error of each output, as a share of the largest element of float32's."""
    import torch

    def array(call: Callable[[], Any]) -> np.ndarray:
        found = call()
        torch.cuda.synchronize()
        numbers = found.float().cpu().numpy() if isinstance(found, torch.Tensor) else found.numpy()
        return np.asarray(numbers, np.float32)

    want = array(calls["float32"])
    most = float(np.abs(want).max())
    return {
        name: float(np.abs(array(call) - want).max()) / most
        for name, call in calls.items()
        if name != "float32"
    }


def measured(name: str, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """Sums, errors, wall times and kernels of each contestant; dlight's are run a few times."""
    errors = errors_of(calls)
    del calls["float32"]
    kernels = {
        who: {
            k: statistics.median(v)
            for k, v in profile(call, FEW if who == "dlight" else REPEATS).items()
        }
        for who, call in calls.items()
    }
    walls = {who: wall(call) for who, call in calls.items()}
    sums = {who: sum(times.values()) for who, times in kernels.items()}
    return {"model": name, "sums": sums, "wall": walls, "errors": errors, "kernels": kernels}


def prepared(
    name: str, graphs: bool = False
) -> tuple[dict[str, Any], dict[str, Callable[[], Any]]]:
    """What is told of a model's compilation, and its calls."""
    executables, choices, seconds = built(model := MODELS[name](), tlx.default_target(), graphs)
    calls = calls_of(model, executables, "reduce-overhead" if graphs else None)
    return {"choices": choices, "compile": seconds}, calls


def work(prepare: Prepare, measure: Measure, name: str, line: Any) -> None:
    """Build a model, say so, and measure it once the other end of the line says that it may."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    row: dict[str, Any] = {"model": name}
    try:
        with torch.no_grad():
            more, calls = prepare(name)
            row |= more
            begin = time.perf_counter()
            calls["torch.compile"]()
            torch.cuda.synchronize()
            row["compile"]["torch.compile"] = time.perf_counter() - begin
            seconds = ", ".join(f"{who} {one:.1f}" for who, one in row["compile"].items())
            print(f"{name} compiled in seconds: {seconds}", flush=True)
            line.send(None)
            line.recv()
            row |= measure(name, calls)
    except Exception as error:  # Others are to be measured all the same.
        row["failed"] = f"{type(error).__name__} {str(error)[-500:]}"
    line.send(row)


def by_function(kernels: dict[str, float]) -> dict[str, float]:
    """Microseconds of each function: its kernels are ``NAME_kernel``, ``NAME_kernel_1``..."""
    found: dict[str, float] = defaultdict(float)
    for name, value in kernels.items():
        found[name.rpartition("_kernel")[0] or name] += value
    return dict(found)


def told(row: dict[str, Any]) -> str:
    """Tables of a model: sums by contestant, then its slowest functions."""
    sums, errors, walls = row["sums"], row["errors"], row["wall"]
    lines = [[w, f"{sums[w]:.1f}", f"{walls[w]:.0f}", f"{errors[w]:.1e}"] for w in sums]
    text = columns(["", "kernels us", "wall us", "error"], lines)
    every = {who: by_function(row["kernels"].get(who, {})) for who in ("ours", "dlight")}
    names = sorted(every["ours"], key=lambda one: -every["ours"][one])[:TOLD]
    slow = [
        [n, f"{every['ours'][n]:.1f}", row["choices"].get(n, "").partition(".")[0][:90]]
        for n in names
    ]
    theirs = sorted(every["dlight"].items(), key=lambda one: -one[1])[:TOLD]
    other = columns(["dlight's", "us"], [[n, f"{us:.1f}"] for n, us in theirs])
    mine = columns(["ours", "us", "how"], slow)
    return f"{row['model']}\n{text}\n{mine}\n{other}\n"


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    dry_run: Annotated[bool, typer.Option(help="Build everything, run nothing.")] = False,
    graphs: Annotated[bool, typer.Option(help="Capture CUDA graphs, as torch.compile.")] = False,
) -> None:
    """Build all models at once, each in a process, then time one after the other."""
    names = [name for name in MODELS if any(one in name for one in only.split("|"))]
    if dry_run:
        for name in names:
            _, choices, seconds = built(MODELS[name](), tlx.default_target(), graphs)
            print(name, "compiled in", {k: round(v, 1) for k, v in seconds.items()}, flush=True)
            print("\n".join(f"  {k}: {v}" for k, v in choices.items()), flush=True)
        return
    timed(names, partial(prepared, graphs=graphs), "models", out)


def timed(names: list[str], prepare: Prepare, module: str, out: Path | None) -> None:
    """Build all models, each in a process, time one after the other, and print and write all."""
    rows = list[dict[str, Any]]()
    for row in rows_of(names, prepare, measured):
        print(told(row) if "sums" in row else f"{row['model']} fails: {row['failed']}", flush=True)
        rows.append(row)
        if out is not None:
            out.write_text(json.dumps({**provenance(module), "rows": rows}, indent=1))
    print(table(rows, names), flush=True)


def rows_of(names: list[str], prepare: Prepare, measure: Measure) -> Iterator[dict[str, Any]]:
    """What is measured of each model; all have built, or failed, before the first is."""
    context = multiprocessing.get_context("spawn")
    lines = {}
    for name in names:
        lines[name], other = context.Pipe()
        context.Process(target=work, args=(prepare, measure, name, other), daemon=True).start()
        other.close()
    failed = {name: answer for name, line in lines.items() if (answer := _answer(name, line))}
    for name, line in lines.items():
        if name not in failed:
            with contextlib.suppress(ConnectionError):  # Whose process has ended says so below.
                line.send(None)
        row = failed.get(name) or _answer(name, line)
        if row is not None:
            yield row


def _answer(name: str, line: Any) -> dict[str, Any] | None:
    """What a process says next; of one that has ended, or says nothing, that it failed."""
    try:
        if line.poll(WAIT):
            return line.recv()
        return {"model": name, "failed": f"says nothing for {WAIT} s"}
    except (EOFError, ConnectionError):
        return {"model": name, "failed": "its process ended"}


def table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Sums of all models side by side."""
    who = ("ours", "dlight", "torch eager", "torch.compile")
    lines = [
        [row["model"], *(f"{row['sums'].get(one, float('nan')):.1f}" for one in who)]
        + [f"{row['errors'].get(one, float('nan')):.1e}" for one in ("ours", "torch eager")]
        for row in sorted(rows, key=lambda one: names.index(one["model"]))
        if "sums" in row
    ]
    return columns(["kernels, us", *who, "error of ours", "of torch"], lines)


if __name__ == "__main__":
    typer.run(main)
