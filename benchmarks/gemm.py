"""Measure the tensor-core GEMM of ``schedules/gemm.py`` beside cuBLAS.

``python -m benchmarks.gemm time --out FILE`` compiles all candidates in parallel, checks every one
against float64 on inputs of its own, and times them in turns with ``torch.matmul``. ``counters``
compares shared-memory wavefronts of Nsight Compute with the simulated GPU's. Both want a GPU of
compute capability 9.0; ``compile`` needs only nvcc, ``simulate`` nothing. ``time --summary`` takes
the best configurations at every shape and type, one tile in every number of versions, and what the
swizzle does: half as many.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Any

import typer

from benchmarks import gemm_candidates as candidates
from benchmarks import gemm_counters
from benchmarks.counters import environment
from benchmarks.gemm_gpu import Product, medians, operands, peak, torch_product
from benchmarks.gemm_kernels import Case, compile_all, load

ROUNDS = 15
app = typer.Typer(add_completion=False)
_Work = Annotated[Path, typer.Option(help="Where machine code is kept.")]
_Out = Annotated[Path | None, typer.Option(help="Write raw results here, as JSON.")]
WORK = Path(tempfile.gettempdir()) / "gemm_cubins"
_CORES = os.cpu_count() or 1
_Summary = Annotated[bool, typer.Option("--summary", help="The short list of cases.")]
#: TFLOPS at 4096^3, float16, A @ B^T of TVM's own primitives scheduled by hand (128x128x64, three
#: stages), from an earlier run on an H200; nothing here measures it.
STOCK = 312.0


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
        facts = {k: found[1][k] for k in ("registers", "spill_bytes", "shared_bytes")}
        row = {"config": case.config, **facts, "blocks_per_sm": product.blocks_per_sm()}
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


def _call(product: Product, a: Any, b: Any) -> Any:
    import torch

    m, n, _ = product.case.shape
    c = torch.empty((m, n), dtype=getattr(torch, product.case.result), device="cuda")
    return lambda: product.run(a, b, c)


def table(title: str, rows: list[dict[str, Any]]) -> str:
    """Rows sorted by speed, with the ratio to cuBLAS."""
    best = next((r["tflops"] for r in rows if r["config"] == "cuBLAS"), float("nan"))
    lines = [title]
    for row in sorted(rows, key=lambda row: -row.get("tflops", 0)):
        speed = row.get("tflops", 0.0)
        facts = ""
        if "registers" in row:
            facts = (
                f"{row['registers']:4} regs {row['spill_bytes']:5} spill "
                f"{row['shared_bytes']:7,} B {row['blocks_per_sm']} blocks"
            )
        wrong = f"  WRONG: {row['error']}" if row["error"] else ""
        lines.append(
            f"  {speed:7.1f} TFLOPS {speed / best:6.3f}x {facts:40} {row['config']}{wrong}"
        )
    return "\n".join(lines)


@app.command("compile")
def compile_command(work: _Work = WORK, limit: int = 0, summary: _Summary = False) -> None:
    """Compile all candidates."""
    cases = _cases(summary)[: limit or None]
    problems = compile_all(cases, work, _CORES)
    print(f"{len(cases) - len(problems)} of {len(cases)} kernels compiled into {work}")
    print("\n".join(problems))


@app.command("time")
def time_command(
    out: _Out = None, work: _Work = WORK, rounds: int = ROUNDS, summary: _Summary = False
) -> None:
    """Check and time all candidates."""
    cases = _cases(summary)
    for problem in compile_all(cases, work, _CORES):
        print(problem)
    groups: dict[tuple[Any, ...], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.shape, case.operand, case.layout].append(case)
    record: dict[str, Any] = {"environment": environment(), "rounds": rounds, "groups": []}
    record["mma_sync_peak_tflops"] = peak()
    print(f"mma.sync of f16 on registers alone: {record['mma_sync_peak_tflops']:.1f} TFLOPS")
    record["git"] = os.environ.get("TVM_LAYOUT_EXT_GIT_ID", "")
    for (shape, operand, layout), members in groups.items():
        rows = _measured(members, work, rounds)
        size = "x".join(map(str, shape))
        print(table(f"{operand} {size} {layout}", rows), flush=True)
        record["groups"].append({"shape": shape, "type": operand, "layout": layout, "rows": rows})
        if out is not None:
            out.write_text(json.dumps(record) + "\n")
    print(overview(record["groups"]))
    if any(row["error"] for group in record["groups"] for row in group["rows"]):
        raise typer.Exit(1)


def _cases(summary: bool) -> list[Case]:
    return candidates.summary_cases() if summary else candidates.all_cases()


def overview(groups: Sequence[dict[str, Any]]) -> str:
    """The best of every shape, type and order beside cuBLAS, and the ratios' geometric mean."""
    lines, ratios = [], []
    for group in groups:
        speeds = {
            r["config"]: r["tflops"] for r in group["rows"] if r.get("tflops") and not r["error"]
        }
        library = speeds.pop("cuBLAS", None)
        if library is None or not speeds:
            continue
        best = max(speeds, key=speeds.__getitem__)
        ratio = speeds[best] / library
        size = "x".join(map(str, group["shape"]))
        lines.append(
            f"{group['type']:14} {size:17} {group['layout']} {speeds[best]:7.1f} {library:7.1f} "
            f"{ratio:.3f}  {best}"
        )
        if (group["type"], group["layout"]) == ("float16", "nt"):
            ratios.append(ratio)
    if ratios:
        mean = geometric_mean(ratios)
        lines.append(f"float16 nt: {mean:.3f} of cuBLAS, geometric mean over {len(ratios)} shapes")
    lines.append(f"TVM's own primitives, float16 4096^3 nt: {STOCK:.0f}, not measured in this run")
    return "\n".join(["the best, TFLOPS: ours, cuBLAS, ratio", *lines])


@app.command("simulate")
def simulate_command(
    names: Annotated[list[str] | None, typer.Argument(help="Cases; all by default.")] = None,
    out: _Out = None,
) -> None:
    """Count wavefronts of the simulated GPU."""
    _show(gemm_counters.simulate_all(_CORES, names), {}, out)


@app.command("counters")
def counters_command(out: _Out = None, work: _Work = WORK) -> None:
    """Compare Nsight Compute's wavefronts with the simulated GPU's."""
    for problem in compile_all(list(candidates.COUNTED.values()), work, _CORES):
        print(problem)
    ncu = gemm_counters.profile(work)
    _show(gemm_counters.simulate_all(_CORES), ncu, out)


def _show(simulated: dict[str, Any], ncu: dict[str, Any], out: Path | None) -> None:
    print(gemm_counters.table(simulated, ncu))
    if out is not None:
        record = {"environment": environment(), "simulated": simulated, "ncu": ncu}
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
