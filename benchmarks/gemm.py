"""Measure the tensor-core GEMM of ``schedules/gemm.py`` beside cuBLAS and TVM's own primitives.

``python -m benchmarks.gemm time --out FILE`` compiles all candidates in parallel, checks every one
against float64 on inputs of its own, and times them in turns with ``torch.matmul``. ``counters``
compares shared-memory wavefronts of Nsight Compute with the simulated GPU's. Both want a GPU of
compute capability 9.0; ``compile`` needs only nvcc, ``simulate`` nothing. ``time --summary`` takes
the best configurations at every shape and type, three tiles in every number of versions, what the
swizzle does, and the peer of :mod:`benchmarks.stock_tvm`; ``time --only stages`` one such part.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks import gemm_candidates as candidates
from benchmarks import gemm_counters
from benchmarks.counters import environment
from benchmarks.gemm_gpu import Product, medians, operands, peak, torch_product
from benchmarks.gemm_kernels import ARCH, Case, compile_all, load
from benchmarks.gemm_tables import depths, overview, swizzles, table
from tvm_layout_ext.gpu.hardware import architecture, blocks_per_sm

ROUNDS = 15
app = typer.Typer(add_completion=False)
_Work = Annotated[Path, typer.Option(help="Where machine code is kept.")]
_Out = Annotated[Path | None, typer.Option(help="Write raw results here, as JSON.")]
WORK = Path(tempfile.gettempdir()) / "gemm_cubins"
_CORES = os.cpu_count() or 1
_Summary = Annotated[bool, typer.Option("--summary", help="The short list of cases.")]
_Only = Annotated[
    list[str] | None,
    typer.Option(help=f"A part of the short list: {', '.join(candidates.PARTS)}; may be repeated."),
]


def _measured(cases: list[Case], folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Check and time the cases of one shape, type and layout."""
    a, b = operands(cases[0])
    calls, rows = {}, []
    for case in cases:
        found = load(case, folder)
        if found is None:
            rows.append({"config": case.config, "error": "does not compile"})
            continue
        product = Product(case, *found)
        row = _facts(case, found[1]) | {"blocks_per_sm": product.blocks_per_sm()}
        row["error"] = product.error()
        rows.append(row)
        calls[case.config] = _call(product, a, b)
    library = torch_product(cases[0], a, b)
    if library is not None:
        calls["cuBLAS"] = library
        rows.append({"config": "cuBLAS", "error": ""})
    for config, (middle, all_) in medians(calls, rounds).items():
        row = next(row for row in rows if row["config"] == config)
        row |= {"seconds": middle, "all_seconds": all_, "tflops": cases[0].flops / middle / 1e12}
    return rows


def _facts(case: Case, facts: dict[str, Any]) -> dict[str, Any]:
    """What the compiler said, and the occupancy that follows from it."""
    kept = ("registers", "spill_bytes", "shared_bytes")
    row = {"config": case.config, **{name: facts[name] for name in kept}}
    threads = math.prod(facts["block"])
    row["blocks_computed"] = blocks_per_sm(
        architecture(ARCH), threads, facts["registers"], facts["shared_bytes"]
    )
    return row


def _call(product: Product, a: Any, b: Any) -> Any:
    import torch

    m, n, _ = product.case.shape
    c = torch.empty((m, n), dtype=getattr(torch, product.case.result), device="cuda")
    return lambda: product.run(a, b, c)


@app.command("compile")
def compile_command(
    work: _Work = WORK, limit: int = 0, summary: _Summary = False, only: _Only = None
) -> None:
    """Compile all candidates, and print how many blocks of each a multiprocessor should hold."""
    cases = _cases(summary, only)[: limit or None]
    problems = compile_all(cases, work, _CORES)
    print(f"{len(cases) - len(problems)} of {len(cases)} kernels compiled into {work}")
    print("\n".join(problems))
    for (shape, _, _), members in _groups(cases).items():
        compiled = [(case, found) for case in members if (found := load(case, work))]
        rows = [_facts(case, facts) | {"blocks_per_sm": "?"} for case, (_, facts) in compiled]
        if text := depths({"shape": shape, "rows": rows}):
            print(text)


@app.command("time")
def time_command(
    out: _Out = None,
    work: _Work = WORK,
    rounds: int = ROUNDS,
    summary: _Summary = False,
    only: _Only = None,
) -> None:
    """Check and time all candidates."""
    cases = _cases(summary, only)
    for problem in compile_all(cases, work, _CORES):
        print(problem)
    record: dict[str, Any] = {"environment": environment(), "rounds": rounds, "groups": []}
    record["mma_sync_peak_tflops"] = peak()
    print(f"mma.sync of f16 on registers alone: {record['mma_sync_peak_tflops']:.1f} TFLOPS")
    record["git"] = os.environ.get("TVM_LAYOUT_EXT_GIT_ID", "")
    for (shape, operand, layout), members in _groups(cases).items():
        rows = _measured(members, work, rounds)
        size = "x".join(map(str, shape))
        print(table(f"{operand} {size} {layout}", rows), flush=True)
        group = {"shape": shape, "type": operand, "layout": layout, "rows": rows}
        record["groups"].append(group)
        print("\n".join(text for text in (depths(group), swizzles(group)) if text), flush=True)
        if out is not None:
            out.write_text(json.dumps(record) + "\n")
    print(overview(record["groups"]))
    if any(row["error"] for group in record["groups"] for row in group["rows"]):
        raise typer.Exit(1)


def _cases(summary: bool, only: list[str] | None) -> list[Case]:
    if only:
        unknown = ", ".join(sorted(set(only) - candidates.PARTS.keys()))
        if unknown:
            known = ", ".join(candidates.PARTS)
            raise typer.BadParameter(f"There is no part {unknown}; there are {known}.")
        return candidates.part_cases(only)
    return candidates.summary_cases() if summary else candidates.all_cases()


def _groups(cases: Sequence[Case]) -> dict[tuple[Any, ...], list[Case]]:
    """Cases of one shape, type and layout, which run in turns."""
    groups = defaultdict(list)
    for case in cases:
        groups[case.shape, case.operand, case.layout].append(case)
    return groups


@app.command("simulate")
def simulate_command(
    names: Annotated[list[str] | None, typer.Argument(help="Cases; all by default.")] = None,
    out: _Out = None,
) -> None:
    """Count wavefronts of the simulated GPU; what ``out`` holds of Nsight Compute's stays."""
    simulated = gemm_counters.simulate_all(_CORES, names)
    record: dict[str, Any] = {"environment": environment(), "simulated": {}, "ncu": {}}
    if out is not None and out.exists():
        record |= json.loads(out.read_text())
    _show(record | {"simulated": record["simulated"] | simulated}, out)


@app.command("counters")
def counters_command(out: _Out = None, work: _Work = WORK) -> None:
    """Compare Nsight Compute's wavefronts with the simulated GPU's; exit 1 if any differ."""
    for problem in compile_all(list(candidates.COUNTED.values()), work, _CORES):
        print(problem)
    ncu = gemm_counters.profile(work)
    simulated = gemm_counters.simulate_all(_CORES)
    _show({"environment": environment(), "simulated": simulated, "ncu": ncu}, out)
    if gemm_counters.differing(simulated, ncu):
        raise typer.Exit(1)


def _show(record: dict[str, Any], out: Path | None) -> None:
    print(gemm_counters.table(record["simulated"], record["ncu"]))
    if out is not None:
        out.write_text(json.dumps(record, indent=1) + "\n")


@app.command("launch", hidden=True)
def launch_command(names: list[str], work: _Work = WORK) -> None:
    """Run counted cases once each, for the profiler."""
    for name in names:
        case = candidates.COUNTED[name]
        found = load(case, work)
        assert found is not None, name
        problem = Product(case, *found).error()
        assert not problem, f"{name}: {problem}"


if __name__ == "__main__":
    app()
