"""CPU seconds of compilation to CUDA: ours beside dlight, by phase and model.

``python -m benchmarks.compile_time --out FILE`` needs neither a GPU nor a compiler: what turns CUDA
into machine code is left out, but for ``--wholly``, which counts its processes, too. Each
model is compiled ``repeats`` times by both pipelines in turn, after a run that loads what is loaded
once, and the least time counts. Passes that a schedule runs are counted as the schedule's.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import relax

import tvm_layout_ext as tlx
from benchmarks.model_zoo import MODELS
from tvm_layout_ext.cubin import machine_code
from tvm_layout_ext.text import columns

#: Passes that are phases of their own, by name.
PHASES = {
    "ApplyDefaultSchedule": "schedules",
    "tvm_layout_ext.DefaultSchedule": "schedules",
    "tvm_layout_ext.pipeline": "TIR",
    "s_tir": "TIR",
    "s_tir.pipeline": "TIR",
}
NAMES = ("schedules", "TIR", "others")


@tvm.instrument.pass_instrument
class Clock:
    """CPU seconds inside of passes, those that run within others included."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.open: list[tuple[str, float]] = []

    def run_before_pass(self, _mod: tvm.IRModule, info: Any) -> None:
        """Note when a pass begins."""
        self.open.append((str(info.name), time.process_time()))

    def run_after_pass(self, _mod: tvm.IRModule, _info: Any) -> None:
        """Add what an outermost pass of a phase has taken."""
        name, begin = self.open.pop()
        if name in PHASES and not any(outer in PHASES for outer, _ in self.open):
            self.seconds[PHASES[name]] += time.process_time() - begin


def compiled(
    module: tvm.IRModule, target: Any, ours: bool, wholly: bool = False
) -> dict[str, float]:
    """CPU seconds of one compilation by phase; ``wholly`` with that of machine code."""
    default = relax.pipeline.get_default_pipeline
    pipeline = tlx.relax_pipeline(target) if ours else default(target)
    clock = Clock()
    begin = time.process_time()
    with tvm.transform.PassContext(instruments=[clock]):
        executable = tvm.compile(module, target=target, relax_pipeline=pipeline)
    whole = time.process_time() - begin
    known = {name: clock.seconds[name] for name in NAMES[:-1]}
    known["others"] = whole - sum(known.values())
    more = {"machine code": to_machine_code(executable.mod, target)} if wholly else {}
    return {**known, "whole": whole, **more}


def to_machine_code(module: Any, target: Any) -> float:
    """CPU seconds in which a module's CUDA becomes machine code, here or in processes of nvcc."""
    begin = os.times()
    for code in cuda_of(module):
        machine_code(code, str(target.attrs["arch"]))
    return sum(end - start for start, end in zip(begin[:4], os.times()[:4], strict=True))


def cuda_of(module: Any) -> list[str]:
    """The CUDA of a module and of those that it imports."""
    own = [str(module.inspect_source())] if module.kind == "cuda" else []
    return [*own, *(code for one in module.imports for code in cuda_of(one))]


def row(name: str, target: Any, repeats: int, wholly: bool = False) -> dict[str, Any]:
    """The fastest of some compilations of a model by each pipeline."""
    module = MODELS[name]().module
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "dlight": []}
    for number in range(repeats + 1):
        for who, found in runs.items():
            found.append(compiled(module, target, who == "ours", wholly and number == repeats))
    least = {
        who: {**found[-1], **min(found[1:], key=lambda one: one["whole"])}
        for who, found in runs.items()
    }
    return {"model": name, **least}


def told(rows: Iterable[dict[str, Any]]) -> str:
    """A line a model: ours by phase, dlight's, how many times as long."""
    lines = []
    for one in rows:
        ours, theirs = one["ours"], one["dlight"]
        lines.append([one["model"], *(f"{ours[n]:.2f} / {theirs[n]:.2f}" for n in NAMES)])
        lines[-1] += [f"{ours['whole']:.2f}", f"{theirs['whole']:.2f}"]
        lines[-1].append(f"{ours['whole'] / theirs['whole']:.1f}")
        code = [f"{who['machine code']:.2f}" for who in (ours, theirs) if "machine code" in who]
        lines[-1].append(" / ".join(code))
    return columns(["ours / dlight's, s", *NAMES, "ours", "dlight", "ratio", "code"], lines)


def machine() -> dict[str, Any]:
    """What the times were taken on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = names[0] if names else platform.processor() or platform.machine()
    gpus = tvm.cuda().exist
    return {"processor": processor, "cores": os.cpu_count(), "gpu": "yes" if gpus else "none"}


def main(
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    only: Annotated[str, typer.Option(help="Parts of names, with | between them.")] = "",
    repeats: Annotated[int, typer.Option(help="Compilations of each model.")] = 2,
    wholly: Annotated[bool, typer.Option(help="Make machine code, too.")] = False,
) -> None:
    """Compile models by both pipelines and tell what each phase takes."""
    target = tlx.cuda_target("sm_90a")
    tvm.register_global_func("tvm_callback_cuda_compile", lambda _code: b"\0", override=True)
    rows = []
    for name in MODELS:
        if any(part in name for part in only.split("|")):
            rows.append(row(name, target, repeats, wholly))
            print(told(rows[-1:]), flush=True)
    print(told(rows))
    if out is not None:
        command = f"python -m benchmarks.compile_time{' --wholly' if wholly else ''}"
        found = {"command": command, "host": machine(), "rows": rows}
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
