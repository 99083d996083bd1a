"""Compare the numbers of Relax programs on a GPU: ours and dlight's, each with the CPU's.

``python -m benchmarks.relax_numbers --out FILE`` needs a CUDA GPU, and torch for the file. Programs
are those that TVM's tests and tutorials have, tiny models of every kind, and random functions. Each
is compiled whole, by ``tlx.relax_pipeline``, by TVM's pipeline for CUDA and by its own for the CPU,
and is given random inputs.
"""

from __future__ import annotations

import json
import multiprocessing
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tvm
import typer
from tvm import relax
from tvm.target import Target

import tvm_layout_ext as tlx
from tests.models.random_programs import module, random_program
from tests.models.running import array_of
from tests.models.small_models import MODELS as SMALL
from tests.models.tvm_programs import MODELS
from tvm_layout_ext.text import columns

#: The largest error, as a share of the largest element, by the width of what was computed in.
TOLERANCES = {"float64": 1e-6, "float32": 2e-4, "float16": 2e-2, "bfloat16": 0.2}
#: Seconds after which a program is given up, and no more are begun.
LONG, ENOUGH = 60, 150


def program(name: str) -> tvm.IRModule:
    """The module of a name; ``random 17`` is the function of that seed."""
    if name.startswith("random "):
        return module(random_program(int(name.split()[1]))[1])
    mod = {**SMALL, **MODELS}[name]()
    if "main" in {gv.name_hint for gv in mod.get_global_vars()}:
        return mod
    main = mod["forward"].with_attr("global_symbol", "main")
    rest = {gv: one for gv, one in mod.functions.items() if gv.name_hint != "forward"}
    return tvm.IRModule({tvm.ir.GlobalVar("main"): main, **rest})


def outputs(mod: tvm.IRModule, target: Target, pipeline: Any, arrays: list[Any]) -> list[Any]:
    """What a module gives, compiled by a pipeline."""
    device = tvm.cuda(0) if target.kind.name == "cuda" else tvm.cpu()
    built = tvm.compile(mod, target, relax_pipeline=pipeline)
    main = relax.VirtualMachine(built, device)["main"]
    return _flat(main(*(tvm.runtime.tensor(one, device) for one in arrays)))


def _why(error: Exception) -> str:
    """What a compiler refuses, or the end of what an error says."""
    said = str(error).replace("\0", "").strip()
    lines = [line for line in said.splitlines() if ": error" in line]
    return f"{type(error).__name__} {lines[0] if lines else said[-200:]}"


def _flat(found: Any) -> list[Any]:
    if hasattr(found, "numpy"):
        return [found.numpy()]
    return [one for part in found for one in _flat(part)]


def error_of(found: list[Any], want: list[Any]) -> float:
    """The largest error of all results, as a share of the largest element of each."""
    return max(_error(one, other) for one, other in zip(found, want, strict=True))


def _error(found: Any, want: Any) -> float:
    if found.shape != want.shape or found.dtype != want.dtype:
        return float("inf")
    if not want.size:
        return 0.0
    one, other = found.astype("float64"), want.astype("float64")
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return float("inf")
    with np.errstate(invalid="ignore"):
        off = np.where(one == other, 0, np.abs(np.nan_to_num(one) - np.nan_to_num(other)))
    finite = np.abs(other[np.isfinite(other)])
    return float(off.max() / (finite.max(initial=0) or 1))


def tolerance_of(arrays: list[Any]) -> float:
    """What an error may be, by the narrowest float among the inputs."""
    names = {str(getattr(one, "dtype", "")) for one in arrays}
    return max((TOLERANCES[name] for name in names & set(TOLERANCES)), default=1e-3)


def compared(name: str, target: Target, tell: Callable[[str], None]) -> dict[str, Any]:
    """Errors of both pipelines for the GPU, or why one of them has none.

    ``tell`` is given the name of each before it runs, for the process may end in it.
    """
    mod = program(name)
    rng = np.random.default_rng(0)
    arrays = [array_of(param.ty, rng) for param in mod["main"].params]
    ways: dict[str, Callable[[], list[Any]]] = {
        "cpu": lambda: outputs(mod, Target("llvm"), "default", arrays),
        "dlight": lambda: outputs(mod, target, relax.pipeline.get_default_pipeline(target), arrays),
        "ours": lambda: outputs(mod, target, tlx.relax_pipeline(target), arrays),
    }
    row: dict[str, Any] = {"name": name, "tolerance": tolerance_of(arrays)}
    found: dict[str, list[Any]] = {}
    for who, way in ways.items():
        tell(who)
        try:
            found[who] = way()
        except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            row[f"{who} fails"] = _why(error)
    want = found.get("cpu", found.get("dlight"))
    if want is not None:
        row |= {who: error_of(one, want) for who, one in found.items() if one is not want}
    return row


def work(names: list[str], at: int, rows: Any) -> None:
    """Compare one program after the other; a GPU that has failed once is not asked again."""
    target = tlx.default_target()
    for name in names:
        try:
            row = compared(name, target, lambda who, name=name: rows.put((at, (name, who))))
        except Exception as error:  # Others are to be compared all the same.
            row = {"name": name, "fails": _why(error)}
        rows.put((at, row))
        if any("CUDA" in str(why) for key, why in row.items() if "fails" in key):
            return


def verdict(row: dict[str, Any]) -> str:
    """What became of a program in a word."""
    if "ours" in row:
        # Of 16 bits the CPU's code adds up in 16 bits, as dlight's does.
        allowed = max(row["tolerance"], 2 * row.get("dlight", 0))
        return "right" if row["ours"] <= allowed else "differs"
    if "dlight fails" in row and "ours fails" not in row:
        return "not compared"
    return "neither runs" if "dlight fails" in row else "fails"


def run(names: list[str], workers: int) -> list[dict[str, Any]]:
    """Rows of programs, compared by several processes; those not begun in time are left out."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    left = {at: names[at::workers] for at in range(workers)}
    doing: dict[int, tuple[Any, tuple[str, str], float]] = {}
    start, found = time.monotonic(), list[dict[str, Any]]()

    def begin(at: int) -> None:
        process = context.Process(target=work, args=(left[at], at, results), daemon=True)
        process.start()
        doing[at] = process, ("", ""), time.monotonic()

    for at in left:
        begin(at)
    while doing and time.monotonic() - start < ENOUGH:
        try:
            at, row = results.get(timeout=0.5)
        except queue.Empty:
            for at, (process, (name, who), since) in list(doing.items()):
                late = time.monotonic() - since > LONG
                if process.is_alive() and not late:
                    continue
                process.kill()
                del doing[at]
                if name:
                    left[at].remove(name)
                    why = "takes too long" if late else "ends its process"
                    found.append({"name": name, f"{who} fails": why})
                if left[at]:
                    begin(at)
            continue
        if isinstance(row, tuple):
            began = doing[at][2] if row[0] == doing[at][1][0] else time.monotonic()
            doing[at] = doing[at][0], row, began
        else:
            doing[at] = doing[at][0], ("", ""), time.monotonic()
            left[at].remove(row["name"])
            found.append(row)
    for process, *_ in doing.values():
        process.kill()
    return found


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    seeds: Annotated[int, typer.Option(help="Random functions.")] = 100,
    first: Annotated[int, typer.Option(help="Seed of the first.")] = 1000,
    workers: Annotated[int, typer.Option(help="Processes.")] = 16,
) -> None:
    """Compare all programs, and print those that differ."""
    named = [*SMALL, *MODELS]
    names = [*named, *(f"random {seed}" for seed in range(first, first + seeds))]
    rows = run(names, workers)
    if out is not None:
        from benchmarks.memory_bound import provenance

        found = {**provenance("relax_numbers"), "programs": len(names), "rows": rows}
        out.write_text(json.dumps(found, indent=1))
    kinds = {row["name"]: verdict(row) for row in rows}
    told = [
        [row["name"], kinds[row["name"]], f"{row.get('ours', float('nan')):.1e}",
         f"{row.get('dlight', float('nan')):.1e}",
         next((f"{key}: {why}"[:150] for key, why in row.items() if "fails" in key), "")]
        for row in rows if kinds[row["name"]] != "right" or len(row) < 4
    ]  # fmt: skip
    print(columns(["program", "", "ours", "dlight", "why"], told), flush=True)
    for what, chosen in (("named", named), ("random", names[len(named) :])):
        words = [kinds.get(name, "not begun") for name in chosen]
        counts = ", ".join(f"{words.count(one)} {one}" for one in dict.fromkeys(words))
        print(f"{len(chosen)} {what} programs: {counts}", flush=True)


if __name__ == "__main__":
    typer.run(main)
