"""Time programs of random kinds, shapes, axes and types beside torch and a copy of as many bytes.

``python -m benchmarks.random_shapes --out FILE`` needs a CUDA GPU, torch and nvcc. A line a program
says how much of the fastest plain copy (of reductions: of the fastest read) each contestant
reaches; the last line has the geometric mean and the worst. ``--part 1/2`` takes every second one;
``--dry-run`` maps and models them all here, without a GPU.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from math import prod
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir

from benchmarks.limits import VECTOR_BYTES
from benchmarks.memory_bound import Bench, compiled_by_torch, draw, provenance
from benchmarks.thread_maps import wrong
from benchmarks.thread_programs import Program
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure.builder.builder import LIBRARY, CubinBuilder, build_one
from tvm_layout_ext.tune.measure.builder.host_objects import HostObjects

__all__ = ["programs"]

#: Programs to draw.
COUNT = 60
#: Programs that are timed with ``--named``, whose speeds were once far from a copy's.
NAMED = (
    Program("permute", (32, 96, 113, 113), "float16", (0, 2, 3, 1)),
    Program("permute", (10001, 15003), "float16", (1, 0)),
    Program("sum", (300000, 257), "float16", (1,)),
    Program("permute", (96, 80, 112, 128), "float16", (3, 2, 1, 0)),
    Program("permute", (300, 500, 700), "float32", (1, 2, 0)),
    Program("sum", (1000000, 33), "float32", (0,)),
)
KINDS = ("copy", "cast", "permute", "slice", "pad", "concat", "broadcast")
SUMS = ("sum", "max", "argmax", "mean")
DTYPES = ("float32", "float16", "int8")
CASTS = (("float32", "float16"), ("float16", "float32"), ("int8", "float32"))
#: Elements of an array, by their logarithm to base 2, and what an axis may be a multiple of.
LEAST, MOST, STEPS = 24.0, 27.5, (1, 1, 2, 8, 32, 64)
#: Timed runs, and those of a limit before the best are chosen.
REPEATS, TRIALS, BEST = 21, 5, 2
#: Processes that build, and that let torch compile beforehand, for the cache on disk.
BUILDERS, COMPILERS = 10, 6


def programs(count: int, seed: int = 0) -> list[Program]:
    """Draw programs, all kinds in turn."""
    rng = random.Random(seed)
    kinds = [*KINDS, *SUMS]
    return [_draw(kinds[n % len(kinds)], rng) for n in range(count)]


def _draw(kind: str, rng: random.Random) -> Program:
    rank = rng.randint(2 if kind in ("permute", *SUMS) else 1, 5 if kind == "permute" else 4)
    shape = _shape(rank, rng)
    dtype, to = rng.choice(DTYPES), ""
    every = range(rank)
    axes: tuple[int, ...] = ()
    if kind == "cast":
        kind, (dtype, to) = "copy", rng.choice(CASTS)
    elif kind == "permute":
        axes = tuple(rng.sample(every, rank))
        while axes == tuple(every):
            axes = tuple(rng.sample(every, rank))
    elif kind == "slice":
        axes = tuple(max(1, n - rng.choice((0, 1, 3, 16))) for n in shape)
    elif kind == "pad":
        axes = tuple(rng.choice((0, 1, 2, 8)) for _ in every)
        axes = (*axes[:-1], axes[-1] or 1)
    elif kind == "concat":
        axis = rng.choice(every)
        axes = axis, max(1, shape[axis] // rng.choice((1, 2, 3)))
    elif kind == "broadcast":
        axes = shape
        shape = tuple(1 if at == rng.randrange(rank) else n for at, n in enumerate(shape))
    elif kind == "argmax":
        axes = (rng.choice(every),)
    elif kind in SUMS:
        axes = tuple(sorted(rng.sample(every, rng.randint(1, rank))))
        dtype = rng.choice(DTYPES[:2]) if kind == "mean" else dtype
    return Program(kind, shape, dtype, axes, to)


def _shape(rank: int, rng: random.Random) -> tuple[int, ...]:
    """Axes whose sizes make up an array of a random size, each of them a multiple of some step."""
    while True:
        shares = [rng.random() + 0.15 for _ in range(rank)]
        bits = rng.uniform(LEAST, MOST)
        sizes = [2 ** (bits * share / sum(shares)) for share in shares]
        steps = [rng.choice(STEPS) for _ in sizes]
        shape = [max(1, round(n / step)) * step for n, step in zip(sizes, steps, strict=True)]
        if 2 ** (LEAST - 1) <= prod(shape) <= 2 ** (MOST + 1):
            return tuple(shape)


def mapped(one: Program) -> s_tir.Schedule:
    """Leave every block to auto_coalesce."""
    sch = s_tir.Schedule(one.function())
    for block in one.blocks:
        sch.auto_coalesce(block)
    return sch


def built(one: Program, parent: str, objects: HostObjects) -> tuple[str, str | None, float]:
    """Build a program, in a worker: its folder, what failed, and the seconds of its mapping."""
    start = time.monotonic()
    module = mapped(one).mod
    took = time.monotonic() - start
    folder = tempfile.mkdtemp(dir=parent)
    return folder, build_one((module, cuda_target("sm_90a"), folder, objects)), took


def warmed(one: Program) -> None:
    """Let torch compile a program, in a process of its own: the cache on disk has it then."""
    import torch

    torch.compile(one.peer(), dynamic=False)(*inputs_of(one))


def inputs_of(one: Program) -> list[Any]:
    """Random inputs."""
    return [draw(shape, dtype) for shape, dtype in one.inputs()]


def limits_of(one: Program, bench: Bench) -> dict[str, Any]:
    """The best limits for as many bytes."""
    size = max(one.bytes(), 1 << 20) // (2 * VECTOR_BYTES) * (2 * VECTOR_BYTES)
    every = bench.reads(size) if one.reduces else bench.copies(size, ours=False)
    first = bench.medians(every, TRIALS)
    return {name: every[name] for name in sorted(first, key=first.__getitem__)[:BEST]}


def run(one: Program, folder: str, bench: Bench) -> dict[str, Any]:
    """Verify and time a program."""
    import torch

    inputs = inputs_of(one)
    want = one.torch(*inputs)
    outs = [
        torch.full(shape, 85, dtype=getattr(torch, dtype), device="cuda")
        for shape, dtype in one.results()
    ]
    kernel = tvm.runtime.load_module(os.path.join(folder, LIBRARY))["main"]
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, *outs)]
    kernel(*views)
    torch.cuda.synchronize()
    error = wrong(one, inputs, outs, want)
    del want
    peer = one.peer()
    compiled = compiled_by_torch(peer)
    calls: dict[str, Any] = {"ours": lambda: kernel(*views), "torch eager": lambda: peer(*inputs)}
    try:
        compiled(*inputs)
        calls["torch.compile"] = lambda: compiled(*inputs)
    except Exception as failed:
        print(f"{one.name}: torch.compile fails, {str(failed).splitlines()[0][:120]}")
    limits = limits_of(one, bench)
    times = bench.medians(calls | limits, REPEATS)
    limit = min(times[name] for name in limits)
    of_limit = {name: limit / times[name] for name in calls}
    return {"seconds": times, "bytes": one.bytes(), "of_limit": of_limit, "error": error}


def measured(part: list[Program], bench: Bench, until: float) -> Iterator[dict[str, Any]]:
    """Build all in parallel, and time one after the other."""
    warm = ProcessPoolExecutor(COMPILERS, mp_context=get_context("spawn"))
    compiling = [warm.submit(warmed, one) for one in part]
    # This process has its GPU by now; builders need none.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    builder = CubinBuilder("sm_90a", workers=BUILDERS, timeout=60)
    try:
        waiting: list[Future[Any]] = [
            builder.apart(built, one, str(builder.folder), builder._objects) for one in part
        ]
        # Nothing is timed while others use the GPU.
        wait(compiling, timeout=max(1.0, (until - time.monotonic()) / 2))
        warm.shutdown(wait=True, cancel_futures=True)
        for one, future in zip(part, waiting, strict=True):
            row: dict[str, Any] = {"name": one.name, "of_limit": {}}
            try:
                folder, row["error"], row["mapping_seconds"] = future.result()
                if row["error"] is None:
                    row |= run(one, folder, bench)
            except Exception as failed:
                row["error"] = f"{type(failed).__name__}: {str(failed)[:200]}"
            yield row
            if time.monotonic() > until:
                return
    finally:
        builder.close()


def table(rows: list[dict[str, Any]]) -> str:
    """One line a program, parts of the limit, the worst last."""
    names = ("ours", "torch eager", "torch.compile")
    lines = [f"{'of the limit':56}" + "".join(f"{name:>14}" for name in names)]
    lines += [f"{row['name']}: {row['error']}" for row in rows if row["error"]]
    good = [row for row in rows if "ours" in row["of_limit"] and not row["error"]]
    for row in sorted(good, key=lambda row: -row["of_limit"]["ours"]):
        parts = row["of_limit"]
        cells = [f"{parts[name]:.3f}" if name in parts else "" for name in names]
        lines.append(f"{row['name']:56}" + "".join(f"{cell:>14}" for cell in cells))
    if good:
        ours = [row["of_limit"]["ours"] for row in good]
        peers = [max(v for name, v in row["of_limit"].items() if name != "ours") for row in good]
        slower = sum(mine < 0.98 * best for mine, best in zip(ours, peers, strict=True))
        lines.append(
            f"{len(good)} programs: geometric mean {geometric_mean(ours):.3f}, worst "
            f"{min(ours):.3f}; {slower} of them slower than torch"
        )
    return "\n".join(lines)


def forecast(listed: list[Program]) -> str:
    """One line a program: what is moved, and how long that is modelled to take."""
    lines = []
    for one in listed:
        start = time.monotonic()
        sch = s_tir.Schedule(one.function())
        found = [sch.auto_coalesce(block) for block in one.blocks]
        seconds = sum(one.seconds for one in found)
        paths = ", ".join(one.path for one in found)
        lines.append(
            f"{one.name:56}{one.bytes() / 1e6:9.1f} MB {seconds * 1e6:9.1f} us, "
            f"{one.bytes() / seconds / 1e12:6.2f} TB/s, {paths}, {time.monotonic() - start:.2f} s"
        )
    return "\n".join(lines)


def main(
    out: Annotated[Path, typer.Option(help="Write the results here, as JSON.")] = Path(os.devnull),
    count: Annotated[int, typer.Option(help="Programs to draw.")] = COUNT,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
    part: Annotated[str, typer.Option(help="Which of how many parts to take.")] = "1/1",
    only: Annotated[str, typer.Option(help="Only names with one of these in them: sum-,max-")] = "",
    seconds: Annotated[float, typer.Option(help="End after so many.")] = 600.0,
    named: Annotated[bool, typer.Option(help="Take a few named programs instead.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Map and model; build and time nothing.")] = False,
) -> None:
    """Time every program; print the table."""
    own, of = map(int, part.split("/"))
    texts = only.split(",")
    drawn = NAMED if named else programs(count, seed)
    listed = [one for one in drawn[own - 1 :: of] if any(t in one.name for t in texts)]
    if dry_run:
        print(forecast(listed))
        return
    # Each of COMPILERS processes compiles alone.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    import torch

    until = time.monotonic() + seconds
    bench = Bench()
    rows: list[dict[str, Any]] = []
    for row in measured(listed, bench, until):
        rows.append(row)
        torch.cuda.empty_cache()
        out.write_text(json.dumps({**provenance("random_shapes"), "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    typer.run(main)
