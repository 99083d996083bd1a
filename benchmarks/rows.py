"""Time softmax, layer norm and rms norm beside torch eager, torch.compile, Triton and a copy.

``python -m benchmarks.rows --out FILE`` needs a CUDA GPU, torch, Triton and nvcc, and takes two
minutes. The limit of a row of the table is the best plain copy of as many bytes; how kernels take
turns, and the memory that is read between them, are those of :mod:`benchmarks.memory_bound`. Each
contestant is held against float64 on fresh random numbers first, on a poisoned output.

``--plans N`` times instead, for softmax and layer norm, N plans of ours each: those of the least
modelled time for each number of lanes. The model is fitted to them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir

import tvm_layout_ext as tlx
from benchmarks.memory_bound import BEST, Bench, draw, provenance
from tvm_layout_ext import te
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.coalesce.rows.plan import RowPlan, ranked_plans
from tvm_layout_ext.coalesce.rows.traffic import RowTraffic
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir.annotations import FUSE_ROWS
from tvm_layout_ext.ir.queries import blocks_in
from tvm_layout_ext.tune.space.operator import find_operator

KINDS = ("softmax", "layer_norm", "rms_norm")
SHAPES = ((32768, 4096), (4096, 32768), (128, 131072), (1000000, 64))
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


def built(sch: s_tir.Schedule, inputs: list[Any], output: Any) -> Call:
    """Build a schedule and bind it to its arguments."""
    kernel = tlx.build(sch)["main"]
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, output)]
    return lambda: kernel(*views)


def run(kind: str, shape: tuple[int, int], dtype: str, bench: Bench) -> dict[str, Any]:
    """Verify and time one row of the table."""
    import torch

    from benchmarks import triton_rows

    operator = find_operator(kind)
    tensors = operator.compute(shape, dtype)
    inputs = arguments(tensors)
    output = torch.empty_like(inputs[0])
    peer = torch.empty_like(inputs[0])
    function = functions()[kind]
    compiled = torch.compile(function, dynamic=False)
    sch = operator.schedule(tensors, operator.default_config())
    calls: dict[str, Call] = {
        "ours": built(sch, inputs, output),
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
        "plan": plan_of(sch),
        "failed": failed,
        "seconds": times,
        "of_copy": {name: limit / t for name, t in times.items() if not name.startswith("limit")},
        "copy_tb_per_s": size / limit / 1e12,
    }


def plan_of(sch: s_tir.Schedule) -> list[int]:
    """The numbers of the plan that a schedule has."""
    blocks = [sch.get(b) for b in sch.get_child_blocks(sch.get_sblock("root"))]
    noted = next(b.annotations[FUSE_ROWS] for b in blocks if FUSE_ROWS in b.annotations)
    return [int(n) for n in list(noted)[:7]]


def candidates(operator: Any, shape: Any, dtype: str, most: int) -> Iterator[tuple[RowPlan, Any]]:
    """Plans of the least modelled time, those of each number of lanes in turn, with schedules."""
    func = te.create_prim_func(operator.compute(shape, dtype)).with_attr("global_symbol", "main")
    names = [str(block.name_hint) for block in blocks_in(func.body.block.body)]
    chain = read_chain(func, names)
    ranked = ranked_plans(RowTraffic(chain), architecture("sm_90a"))
    groups: dict[int, list[RowPlan]] = {}
    for plan in (plan for plan in ranked if plan.steps(chain) <= _MOST_STEPS):
        groups.setdefault(plan.lanes, []).append(plan)
    turns = [plan for turn in range(most) for g in groups.values() for plan in g[turn : turn + 1]]
    for plan in turns[:most]:
        sch = s_tir.Schedule(func)
        sch.annotate(sch.get_sblock(names[-1]), FUSE_ROWS, [*plan.numbers(), *names])
        yield plan, sch


def time_plans(kind: str, shape: Any, dtype: str, bench: Bench, most: int) -> dict[str, Any]:
    """Time some plans of one row of the table."""
    import torch

    operator = find_operator(kind)
    tensors = operator.compute(shape, dtype)
    inputs = arguments(tensors)
    output = torch.empty_like(inputs[0])
    want = functions()[kind](*(x.double() for x in inputs))
    listed = list(candidates(operator, shape, dtype, most))
    calls = [built(sch, inputs, output) for _, sch in listed]
    right = {}
    for i, call in enumerate(calls):
        output.fill_(float("nan"))
        call()
        torch.cuda.synchronize()
        try:
            check(output, want, kind)
            right[str(i)] = call
        except RuntimeError as error:
            print(kind, shape, dtype, listed[i][0].numbers(), error)
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
    for shape, dtype, kind in product(SHAPES, DTYPES, KINDS[:2] if plans else KINDS):
        if only not in f"{kind} {dtype} {shape[0]}x{shape[1]}":
            continue
        args = kind, shape, dtype, bench
        results.append(time_plans(*args, plans) if plans else run(*args))
        torch.cuda.empty_cache()
        # After each row: a run that is cut off leaves what it has.
        made = {**provenance("rows"), "rows": results}
        out.write_text(json.dumps(made, indent=1) + "\n")
    print(plans_table(results) if plans else table(results))


if __name__ == "__main__":
    typer.run(main)
