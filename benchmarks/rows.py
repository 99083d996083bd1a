"""Time softmax, layer norm and rms norm beside torch eager, torch.compile, Triton and a copy.

``python -m benchmarks.rows --out FILE`` needs a CUDA GPU, torch, Triton and nvcc, and takes two
minutes. The limit of a row of the table is the best plain copy of as many bytes; how kernels take
turns, and the memory that is read between them, are those of :mod:`benchmarks.memory_bound`. Each
contestant is held against float64 on fresh random numbers first, on a poisoned output.

``--plans N`` times instead N plans of ours each: those of the least modelled time for each number
of blocks of a cluster, of lanes, and for elements that are kept or computed again. The model is
fitted to them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir

import tvm_layout_ext as tlx
from benchmarks.memory_bound import BEST, Bench, compiled_by_torch, draw, provenance
from tvm_layout_ext import te
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.coalesce.rows.plan import RowPlan, ranked_plans
from tvm_layout_ext.coalesce.rows.traffic import RowTraffic
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir.annotations import FUSE_ROWS
from tvm_layout_ext.ir.queries import blocks_in
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.space.operator import find_operator

KINDS = ("softmax", "layer_norm", "rms_norm")
SHAPES = (
    (32768, 4096),
    (4096, 32768),
    (512, 65536),
    (128, 131072),
    (32, 262144),
    (1000000, 64),
)
DTYPES = ("float16", "float32")
#: Timed runs of each contestant, and of each plan or copy before the best are chosen.
REPEATS, TRIALS = 31, 9
EPSILON = 1e-5
#: Steps of a thread beyond which no plan is worth its time on the GPU.
_MOST_STEPS = 64
Call = Callable[[], Any]


def functions() -> dict[str, Callable[..., Any]]:
    """What torch has for each kind."""
    from torch.nn import functional

    return {
        "softmax": lambda x: functional.softmax(x, -1),
        "layer_norm": lambda x, w, b: functional.layer_norm(x, w.shape, w, b, EPSILON),
        "rms_norm": lambda x, w: functional.rms_norm(x, w.shape, w, EPSILON),
    }


def check(got: Any, want: Any, kind: str) -> None:
    """Raise at a wrong result."""
    import torch

    half = got.dtype == torch.float16
    atol = (1e-7 if half else 1e-9) if kind == "softmax" else (4e-3 if half else 2e-5)
    if not torch.allclose(got.double(), want, rtol=4e-3 if half else 1e-4, atol=atol):
        worst = (got.double() - want).abs().max().item()
        raise RuntimeError(f"{kind} is wrong by up to {worst}")


def arguments(tensors: list[Any]) -> list[Any]:
    """Random inputs."""
    return [draw(tuple(map(int, t.shape)), str(t.dtype)) for t in tensors[:-1]]


def bound(module: Any, inputs: list[Any], output: Any) -> Call:
    """Bind a module to its arguments."""
    kernel = module["main"]
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, output)]
    return lambda: kernel(*views)


def run(
    kind: str, shape: tuple[int, int], dtype: str, bench: Bench, built: tuple[list[int], str]
) -> dict[str, Any]:
    """Verify and time one row of the table: what :func:`build_default` built, and its peers."""
    import torch

    from benchmarks import triton_rows

    operator = find_operator(kind)
    inputs = arguments(operator.compute(shape, dtype))
    output = torch.empty_like(inputs[0])
    peer = torch.empty_like(inputs[0])
    function = functions()[kind]
    compiled = compiled_by_torch(function)
    plan, path = built
    calls: dict[str, Call] = {
        "ours": bound(tvm.runtime.load_module(path), inputs, output),
        "torch eager": lambda: function(*inputs),
        "torch.compile": lambda: compiled(*inputs),
        "triton": triton_rows.bound(kind, inputs, peer),
    }
    want = function(*(x.double() for x in inputs))
    failed: dict[str, str] = {}
    for name, call in calls.items():
        held = {"ours": output, "triton": peer}.get(name)
        if held is not None:
            held.fill_(float("nan"))
        try:
            got = call()
            torch.cuda.synchronize()
            check(got if held is None else held, want, kind)
        except Exception as error:
            # A peer that a release breaks costs its column, not the table.
            failed[name] = str(error)
    del want
    calls = {name: call for name, call in calls.items() if name not in failed}
    size = operator.traffic(shape, dtype)
    every = bench.copies(size // 32 * 32)
    first = bench.medians(every, TRIALS)
    best = sorted(first, key=first.__getitem__)[:BEST]
    times = bench.medians(calls | {name: every[name] for name in best}, REPEATS)
    limit = min(t for name, t in times.items() if name.startswith("limit"))
    return {
        "name": f"{kind} {dtype} {shape[0]}x{shape[1]}",
        "bytes": size,
        "plan": plan,
        "failed": failed,
        "seconds": times,
        "of_copy": {name: limit / t for name, t in times.items() if not name.startswith("limit")},
        "copy_tb_per_s": size / limit / 1e12,
    }


def build_default(
    kind: str, shape: tuple[int, int], dtype: str, path: str
) -> tuple[list[int], str]:
    """Build the default schedule, in any process; the numbers of its plan, and the library."""
    operator = find_operator(kind)
    sch = operator.schedule(operator.compute(shape, dtype), operator.default_config())
    blocks = [sch.get(b) for b in sch.get_child_blocks(sch.get_sblock("root"))]
    noted = next(b.annotations[FUSE_ROWS] for b in blocks if FUSE_ROWS in b.annotations)
    tlx.build(sch, target=cuda_target("sm_90a")).export_library(path)
    return [int(n) for n in noted if not isinstance(n, str)], path


def candidates(kind: str, shape: tuple[int, int], dtype: str, most: int) -> list[RowPlan]:
    """Plans of the least modelled time, those of each kind in turn."""
    chain = read_chain(*chain_of(kind, shape, dtype))
    ranked = ranked_plans(RowTraffic(chain), architecture("sm_90a"))
    groups: dict[Any, list[RowPlan]] = {}
    for plan in (plan for plan in ranked if plan.steps(chain) <= _MOST_STEPS):
        groups.setdefault((plan.cluster, plan.lanes, plan.hold, plan.ahead), []).append(plan)
    turns = [plan for turn in range(most) for g in groups.values() for plan in g[turn : turn + 1]]
    return turns[:most]


def chain_of(kind: str, shape: tuple[int, int], dtype: str) -> tuple[Any, list[str]]:
    """The function of a row of the table, and its blocks."""
    func = te.create_prim_func(find_operator(kind).compute(shape, dtype))
    func = func.with_attr("global_symbol", "main")
    return func, [str(block.name_hint) for block in blocks_in(func.body.block.body)]


def build_plan(kind: str, shape: tuple[int, int], dtype: str, plan: RowPlan, path: str) -> str:
    """Build one plan of a row of the table, in any process."""
    func, names = chain_of(kind, shape, dtype)
    sch = s_tir.Schedule(func)
    sch.annotate(sch.get_sblock(names[-1]), FUSE_ROWS, [*plan.numbers(), *names])
    tlx.build(sch, target=cuda_target("sm_90a")).export_library(path)
    return path


def time_plans(
    kind: str, shape: tuple[int, int], dtype: str, bench: Bench, listed: list[tuple[RowPlan, str]]
) -> dict[str, Any]:
    """Time some plans of one row of the table, each with its library."""
    import torch

    operator = find_operator(kind)
    inputs = arguments(operator.compute(shape, dtype))
    output = torch.empty_like(inputs[0])
    want = functions()[kind](*(x.double() for x in inputs))
    right = {}
    for i, (plan, path) in enumerate(listed):
        output.fill_(float("nan"))
        call = bound(tvm.runtime.load_module(path), inputs, output)
        try:
            call()
            torch.cuda.synchronize()
            check(output, want, kind)
            right[str(i)] = call
        except RuntimeError as error:
            print(kind, shape, dtype, plan.numbers(), error)
    del want
    times = bench.medians(right, TRIALS)
    size = operator.traffic(shape, dtype)
    plans = [
        {"plan": plan.numbers(), "seconds": times[str(i)], "tb_per_s": size / times[str(i)] / 1e12}
        for i, (plan, _) in enumerate(listed)
        if str(i) in times
    ]
    return {"name": f"{kind} {dtype} {shape[0]}x{shape[1]}", "bytes": size, "plans": plans}


def table(results: list[dict[str, Any]]) -> str:
    """One line a row: speeds as parts of a copy's."""
    names = ("ours", "torch eager", "torch.compile", "triton")
    heads = "".join(f"{n:>14}" for n in (*names, "copy TB/s"))
    lines = [f"{'of a copy':28}{heads}"]
    lines += [f"{r['name']}: {n}: {why}"[:200] for r in results for n, why in r["failed"].items()]
    for one in results:
        parts = one["of_copy"]
        cells = [f"{parts[name]:.3f}" if name in parts else "failed" for name in names]
        cells.append(f"{one['copy_tb_per_s']:.2f}")
        lines.append(f"{one['name']:28}" + "".join(f"{c:>14}" for c in cells) + f"  {one['plan']}")
    return "\n".join(lines)


def plans_table(results: list[dict[str, Any]]) -> str:
    """One line a plan: TB/s, best first."""
    lines = []
    for one in results:
        lines.append(one["name"])
        ordered = sorted(one["plans"], key=lambda plan: plan["seconds"])
        lines += [f"  {plan['tb_per_s']:.3f} {plan['plan']}" for plan in ordered]
    return "\n".join(lines)


def main(
    out: Annotated[Path, typer.Option(help="Write the results here, as JSON.")],
    only: Annotated[str, typer.Option(help="Only rows whose name contains this.")] = "",
    plans: Annotated[int, typer.Option(help="Time so many plans of ours instead.")] = 0,
) -> None:
    """Time every row; print the table."""
    import torch

    bench = Bench()
    results: list[dict[str, Any]] = []
    chosen = [
        (kind, shape, dtype)
        for shape, dtype, kind in product(SHAPES, DTYPES, KINDS)
        if only in f"{kind} {dtype} {shape[0]}x{shape[1]}"
    ]
    spawned = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(os.cpu_count(), spawned) as pool,
    ):
        waiting: dict[Any, list[Any]] = {
            row: [
                (plan, pool.submit(build_plan, *row, plan, f"{folder}/{i}-{j}.so"))
                for j, plan in enumerate(candidates(*row, plans))
            ]
            for i, row in enumerate(chosen)
        }
        defaults = {
            row: pool.submit(build_default, *row, f"{folder}/{i}.so")
            for i, row in enumerate([] if plans else chosen)
        }
        for row in chosen:
            listed = [(plan, future.result()) for plan, future in waiting[row]]
            results.append(
                time_plans(*row, bench, listed)
                if plans
                else run(*row, bench, defaults[row].result())
            )
            torch.cuda.empty_cache()
            # After each row: a run that is cut off leaves what it has.
            made = {**provenance("rows"), "rows": results}
            out.write_text(json.dumps(made, indent=1) + "\n")
    print(plans_table(results) if plans else table(results))


if __name__ == "__main__":
    typer.run(main)
