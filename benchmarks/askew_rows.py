"""Time plans of kernels of rows that begin inside of vectors, beside other maps and a read."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import tvm
import typer
from tvm import s_tir

from benchmarks.limits import VECTOR_BYTES
from benchmarks.memory_bound import Bench, draw
from benchmarks.thread_maps import REQUESTS, wrong
from benchmarks.thread_programs import Program
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.propose import propose
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.coalesce.rows.plan import ranked_plans
from tvm_layout_ext.coalesce.rows.write import write_chains
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.gpu.kernel_time import modelled_seconds
from tvm_layout_ext.ir.annotations import FUSE_ROWS
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure.builder.builder import INFO, LIBRARY, CubinBuilder, build_one

LISTED = [
    Program("sum", (300000, 257), "float16", (1,)),
    Program("sum", (100000, 1001), "int8", (1,)),
    Program("argmax", (65536, 1001), "int8", (1,)),
    Program("argmax", (65536, 1024), "int8", (1,)),
    Program("max", (15000, 4099), "float32", (1,)),
    Program("max", (70000, 513), "float32", (1,)),
    Program("sum", (1000000, 67), "float16", (1,)),
    Program("sum", (32768, 4096), "float16", (1,)),
    Program("argmax", (32768, 1000), "float32", (1,)),
    Program("sum", (30000, 2500), "float16", (1,)),
]
PLANS = 14


def modules(one: Program) -> list[tuple[str, float, Any]]:
    """Ways to map a program: what is said, modelled seconds, and the module."""
    function, found = one.function(), []
    sch = s_tir.Schedule(function)
    subject = Subject.of(sch, sch.get_sblock("B"), REQUESTS[0])
    for way in propose(subject)[0]:
        program = way.isolated or subject
        trial = program.sch.copy()
        said = way.apply(trial, program.block)
        works = count_kernels(write_chains(trial.mod["main"])[0])
        found.append((f"PROPOSED {said}", modelled_seconds(works), trial.mod))
    chain = read_chain(function, ["B"])
    seen: dict[Any, int] = {}
    for plan in ranked_plans(chain, architecture("sm_90a")):
        key = plan.lanes
        if seen.get(key, 0) >= 3 or len(found) >= PLANS + 3:
            continue
        seen[key] = seen.get(key, 0) + 1
        trial = s_tir.Schedule(function)
        trial.annotate(trial.get_sblock("B"), FUSE_ROWS, [*plan.numbers(), "B"])
        works = count_kernels(write_chains(trial.mod["main"])[0])
        found.append((plan.text(chain), modelled_seconds(works), trial.mod))
    return found


def built(one: Program, parent: str, objects: Any) -> list[Any]:
    """Build them, in a worker."""
    rows = []
    for text, modelled, module in modules(one):
        folder = tempfile.mkdtemp(dir=parent)
        error = build_one((module, cuda_target("sm_90a"), folder, objects))
        registers = None
        if error is None:
            registers = json.loads((Path(folder) / INFO).read_text())["registers"]
        rows.append((text, modelled, folder, error, registers))
    return rows


def main(out: Path = Path(os.devnull), dry_run: bool = False) -> None:
    """Time all; print a table."""
    if dry_run:
        for one in LISTED:
            for text, modelled, _ in modules(one):
                print(one.name, f"{modelled * 1e6:8.1f}", text)
        return
    import torch

    bench = Bench()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    builder = CubinBuilder("sm_90a", workers=12, timeout=60)
    start, report, lines = time.monotonic(), [], []
    waiting = [builder.apart(built, one, str(builder.folder), builder._objects) for one in LISTED]
    for one, future in zip(LISTED, waiting, strict=True):
        inputs = [draw(shape, dtype) for shape, dtype in one.inputs()]
        want = one.torch(*inputs)
        outs = [
            torch.full(shape, 85, dtype=getattr(torch, dtype), device="cuda")
            for shape, dtype in one.results()
        ]
        size = one.bytes() // (2 * VECTOR_BYTES) * (2 * VECTOR_BYTES)
        calls: dict[str, Any] = dict(bench.reads(size))
        reads = list(calls)
        rows = future.result(timeout=90)
        errors = {}
        for text, _, folder, error, _ in rows:
            if error is None:
                kernel = tvm.runtime.load_module(os.path.join(folder, LIBRARY))["main"]
                views = [tvm.runtime.from_dlpack(t) for t in (*inputs, *outs)]
                for tensor in outs:
                    tensor.fill_(85)
                kernel(*views)
                torch.cuda.synchronize()
                error = wrong(one, inputs, outs, want)
                calls[text] = lambda kernel=kernel, views=views: kernel(*views)
            errors[text] = error
        times = bench.medians(calls, 9)
        limit = min(times[name] for name in reads)
        lines.append(
            f"{one.name}: read {limit * 1e6:.1f} us, {one.bytes() / limit / 1e12:.2f} TB/s"
        )
        for text, modelled, _, _, registers in rows:
            if text in times:
                mine = times[text]
                lines.append(
                    f"  {limit / mine:.3f} {mine * 1e6:8.1f} us, modelled {modelled * 1e6:8.1f} "
                    f"{registers} {text} {errors[text] or ''}"
                )
            else:
                lines.append(f"  FAILED {text} {errors[text][:200]}")
        report.append({"name": one.name, "seconds": times, "errors": errors})
        out.write_text(json.dumps(report, indent=1))
        torch.cuda.empty_cache()
        if time.monotonic() - start > 85:
            break
    print("\n".join(lines), flush=True)
    builder.close()


if __name__ == "__main__":
    typer.run(main)
