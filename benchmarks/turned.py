"""Time permutations whose rows begin inside of vectors, SiLU times a gate, and GELU.

``python -m benchmarks.turned --out FILE`` needs a CUDA GPU, torch and nvcc. A program's kernels are
what ``auto_coalesce`` takes (``now``), and what it takes without tiles of aligned vectors
(``without``); torch eager, torch.compile and the fastest copies of as many bytes take turns with
them. Every result is compared with torch's first. ``--plans`` times plans of such tiles as well,
``--dry-run`` only maps and builds. ``--lock FILE`` holds a lock while a program is timed, for
several benchmarks on one GPU.
"""

from __future__ import annotations

import fcntl
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir, tirx

from benchmarks.limits import VECTOR_BYTES
from benchmarks.memory_bound import Bench, compiled_by_torch, draw, provenance
from benchmarks.thread_programs import Program
from tvm_layout_ext import te
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.propose import propose
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.rows.write import write_chains
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.coalesce.turned.move import read_turn
from tvm_layout_ext.coalesce.turned.plan import TurnedTile, TurnPlan, default_plan
from tvm_layout_ext.coalesce.turned.write import write_tiles
from tvm_layout_ext.gpu.hardware import STATIC_SHARED_BYTES
from tvm_layout_ext.gpu.kernel_time import modelled_seconds
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.annotations import AUTO, DONE, EVICTION_POLICY, TURNED
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure.builder.builder import LIBRARY, CubinBuilder, build_one
from tvm_layout_ext.tune.measure.builder.host_objects import HostObjects

REPEATS, TRIALS, BEST = 21, 5, 2
#: The way whose vectors are done one element after the other where a call has no vector form.
UNPARTED = "unparted"


@dataclass(frozen=True)
class Elements:
    """A function of each element, in float32 and rounded once; a gate is times another half."""

    kind: str
    rows: int
    columns: int
    dtype: str = "float16"

    @property
    def name(self) -> str:
        """Such as ``gate-2048x14336-float16``."""
        return f"{self.kind}-{self.rows}x{self.columns}-{self.dtype}"

    def function(self) -> Any:
        """The TensorIR function."""
        (shape, dtype), out = self.inputs()[0], (self.rows, self.columns)
        x = te.placeholder(shape, dtype, "A")

        def value(i: Any, j: Any) -> Any:
            wide = x[i, j].astype("float32")
            if self.kind == "gelu":
                return (wide * (0.5 + 0.5 * tirx.erf(wide * 0.5**0.5))).astype(dtype)
            inner = 2 * 0.7978845608028654 * wide * (1 + 0.044715 * wide * wide)
            silu = wide * tirx.sigmoid(wide if self.kind == "gate" else inner)
            return silu.astype(dtype) * (x[i, j + self.columns] if self.kind == "gate" else 1)

        return te.create_prim_func([x, te.compute(out, value, "B")])

    def bytes(self) -> int:
        """Bytes that are read and written."""
        return (6 if self.kind == "gate" else 4) * self.rows * self.columns

    def inputs(self) -> list[Any]:
        """Shape and type of the input."""
        return [((self.rows, (1 + (self.kind == "gate")) * self.columns), self.dtype)]

    def results(self) -> list[Any]:
        """The same of the result."""
        return [((self.rows, self.columns), self.dtype)]

    def peer(self) -> Any:
        """The same by torch."""
        import torch

        functional = torch.nn.functional

        def gated(x: Any) -> list[Any]:
            a, b = x.split(self.columns, dim=1)
            return [functional.silu(a) * b]

        return {
            "gate": gated,
            "gelu": lambda x: [functional.gelu(x)],
            "gelu_tanh": lambda x: [functional.gelu(x, approximate="tanh")],
        }[self.kind]


PROGRAMS: tuple[Any, ...] = (
    Elements("gate", 2048, 14336),
    Elements("gelu", 4096, 16384),
    Elements("gelu_tanh", 4096, 16384),
    Program("permute", (10001, 15003), "float16", (1, 0)),
    Program("permute", (32, 96, 113, 113), "float16", (0, 2, 3, 1)),
    Program("permute", (32, 113, 113, 96), "float16", (0, 3, 1, 2)),
    Program("permute", (35262, 2100), "int8", (1, 0)),
    Program("permute", (8191, 9001), "float32", (1, 0)),
    Program("permute", (12, 3001, 2050), "float16", (0, 2, 1)),
    Program("permute", (300, 500, 700), "float32", (1, 2, 0)),
    Program("permute", (8200, 9000), "float16", (1, 0)),
    Program("permute", (256, 512, 14, 14), "float16", (0, 2, 3, 1)),
    Program("permute", (32, 2622734), "float16", (1, 0)),
)
SHAPES = ((64, 128), (128, 64), (64, 256), (128, 256), (256, 64))


def ways(one: Any, with_plans: bool) -> Iterator[tuple[str, Any, list[Any]]]:
    """Names, modules and counts of a program's kernels."""
    function = one.function()
    sch = s_tir.Schedule(function)
    subject = Subject.of(sch, sch.get_sblock("B"), Request())
    found = []
    for way in propose(subject)[0]:
        trial = (way.isolated or subject).sch.copy()
        block = (way.isolated or subject).block
        try:
            said = way.apply(trial, block)
            works = count_kernels(write_tiles(write_chains(trial.mod["main"])[0])[0])
        except (RuntimeError, ValueError, IndexError):
            continue
        trial.annotate(block, DONE, way.path)
        is_turned = TURNED in trial.get(block).annotations
        found.append((modelled_seconds(works), is_turned, said, trial.mod, works))
    _, _, said, module, works = min((x for x in found if not x[1]), key=lambda x: x[0])
    yield f"without: {said}", module, works
    chosen = s_tir.Schedule(function)
    yield f"now: {chosen.auto_coalesce('B').text.partition(';')[0]}", chosen.mod, []
    if isinstance(one, Elements):
        for threads in (256,):
            other = s_tir.Schedule(function)
            other.auto_coalesce("B", num_threads=threads)
            yield f"{threads} threads", other.mod, []
        yield UNPARTED, chosen.mod, []
        return
    turn = read_turn(subject.nest.block)
    for plan in plans(turn) if with_plans and turn is not None else ():
        other = s_tir.Schedule(function)
        other.annotate(other.get_sblock("B"), TURNED, list(plan.numbers()))
        other.annotate(other.get_sblock("B"), EVICTION_POLICY, AUTO)
        works = count_kernels(write_tiles(other.mod["main"])[0])
        yield f"turned {plan.numbers()}", other.mod, works


def plans(turn: Any) -> list[TurnPlan]:
    """Plans that are tried: the default with other numbers, and other shapes of tiles."""
    default = default_plan(turn, None)
    found = [default, replace(default, threads=512)]
    most = [
        -(-dim.extent // vector) * vector
        for dim, vector in ((turn.row, turn.load_vector), (turn.column, turn.unit))
    ]
    halves = [1 + (vector == 4) for vector in (turn.load_vector, turn.store_vector)]
    for shape in SHAPES:
        row, column = (min(m, n // half) for m, n, half in zip(most, shape, halves, strict=True))
        found.append(replace(default, row=row, column=column))
    return [plan for plan in dict.fromkeys(found) if _fits(turn, plan)]


def _fits(turn: Any, plan: TurnPlan) -> bool:
    tile = TurnedTile(turn, plan)
    small = tile.shared_bytes <= STATIC_SHARED_BYTES and plan.column % turn.unit == 0
    return small and plan.row * tile.along >= plan.threads


def mapped(number: int, with_plans: bool) -> list[tuple[dict[str, Any], Any]]:
    """Map a program in every way, and count; in a worker."""
    rows = []
    for name, module, works in ways(PROGRAMS[number], with_plans):
        seconds = modelled_seconds(works) if works else None
        kernels = [work.to_json() for work in works]
        rows.append(({"way": name, "modelled": seconds, "kernels": kernels, "error": None}, module))
    return rows


def built(way: str, module: Any, folder: str, objects: HostObjects) -> str | None:
    """Build one of them; in a worker."""
    was = ops.WITHOUT_VECTORS
    if way == UNPARTED:
        ops.WITHOUT_VECTORS = ()  # type: ignore[assignment]
    try:
        return build_one((module, cuda_target("sm_90a"), folder, objects))
    finally:
        ops.WITHOUT_VECTORS = was


def begun(
    number: int, with_plans: bool, builder: CubinBuilder
) -> list[tuple[dict[str, Any], Future[Any]]]:
    """Begin to build all kernels of a program."""
    found = []
    for row, module in builder.apart(mapped, number, with_plans).result():
        row["folder"] = tempfile.mkdtemp(dir=builder.folder)
        job = row["way"], module, row["folder"], builder._objects
        found.append((row, builder.apart(built, *job)))
    return found


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock, if one is named."""
    if not path:
        yield
        return
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(one: Any, rows: list[dict[str, Any]], bench: Bench) -> dict[str, Any]:
    """Verify and time a program's kernels."""
    import torch

    inputs = [draw(shape, dtype) for shape, dtype in one.inputs()]
    peer = one.peer()
    (want,) = peer(*inputs)
    calls: dict[str, Any] = {"torch eager": lambda: peer(*inputs)}
    for row in rows:
        if row["error"] is not None:
            continue
        kernel = tvm.runtime.load_module(os.path.join(row.pop("folder"), LIBRARY))["main"]
        out = torch.empty_like(want).fill_(85)
        views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, out)]
        kernel(*views)
        torch.cuda.synchronize()
        row["error"] = _wrong(one, out, want)
        calls[row["way"]] = lambda kernel=kernel, views=views: kernel(*views)
    compiled = compiled_by_torch(peer)
    compiled(*inputs)
    calls["torch.compile"] = lambda: compiled(*inputs)
    size = max(one.bytes(), 1 << 20) // (2 * VECTOR_BYTES) * (2 * VECTOR_BYTES)
    every = bench.copies(size, ours=False)
    first = bench.medians(every, TRIALS)
    limits = {name: every[name] for name in sorted(first, key=first.__getitem__)[:BEST]}
    times = bench.medians(calls | limits, REPEATS)
    limit = min(times[name] for name in limits)
    found: dict[str, Any] = {"name": one.name, "bytes": one.bytes(), "limit": limit}
    if one.name.startswith("gate"):
        found["behind_product"] = behind_product(calls, inputs[0])
    for row in rows:
        row["seconds"] = times.get(row["way"])
    found["of_limit"] = {name: limit / seconds for name, seconds in times.items()}
    return found | {"ways": rows}


def behind_product(calls: dict[str, Any], x: Any) -> dict[str, float]:
    """Median seconds right behind products of matrices that write what is read."""
    import torch

    a = torch.randn((x.shape[0], 4096), dtype=x.dtype, device="cuda")
    b = torch.randn((4096, x.shape[1]), dtype=x.dtype, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            for _ in range(4):
                torch.mm(a, b, out=x)
            begin.record()
            call()
            end.record()
            end.synchronize()
            times[name].append(begin.elapsed_time(end) / 1e3)
    return {name: statistics.median(found) for name, found in times.items()}


def _wrong(one: Any, got: Any, want: Any) -> str | None:
    if isinstance(one, Elements):
        off = (got.float() - want.float()).abs() > 2**-7 * want.float().abs() + 1e-6
        wrong = int(off.sum())
    else:
        wrong = int((got != want).sum())
    return f"{wrong:,} of {got.numel():,} elements differ" if wrong else None


def table(found: list[dict[str, Any]]) -> str:
    """One line a kernel, the fastest first."""
    lines = []
    for one in found:
        lines.append(
            f"{one['name']}: {one['bytes'] / 1e6:.0f} MB, copy {one['limit'] * 1e6:.1f} us"
        )
        modelled = {row["way"]: row["modelled"] for row in one["ways"]}
        for name, part in sorted(one["of_limit"].items(), key=lambda item: -item[1]):
            model = f", modelled {modelled[name] * 1e6:.1f}" if modelled.get(name) else ""
            lines.append(f"  {part:.3f}  {one['limit'] / part * 1e6:8.1f} us  {name[:110]}{model}")
        for name, seconds in one.get("behind_product", {}).items():
            lines.append(f"  behind a product {seconds * 1e6:8.1f} us  {name[:90]}")
        lines += [f"  {row['way']}: {row['error']}" for row in one["ways"] if row["error"]]
    return "\n".join(lines)


def main(
    out: Annotated[Path, typer.Option(help="Write the results here, as JSON.")] = Path(os.devnull),
    only: Annotated[str, typer.Option(help="Only names with this in them.")] = "",
    seconds: Annotated[float, typer.Option(help="End after so many.")] = 600.0,
    lock: Annotated[str, typer.Option(help="File to lock while a program is timed.")] = "",
    plans_too: Annotated[bool, typer.Option("--plans", help="Time plans of tiles.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Map and build; time nothing.")] = False,
) -> None:
    """Time every program; print the table."""
    numbers = [n for n, one in enumerate(PROGRAMS) if only in one.name]
    until = time.monotonic() + seconds
    builder = CubinBuilder("sm_90a", workers=min(14, os.cpu_count() or 1), timeout=200)
    found: list[dict[str, Any]] = []
    try:
        with ThreadPoolExecutor(len(numbers)) as threads:
            waiting = list(threads.map(lambda n: begun(n, plans_too, builder), numbers))
        bench = None
        for n, building in zip(numbers, waiting, strict=True):
            rows = [row for row, _ in building]
            for row, future in building:
                row["error"] = future.result()
            print(f"{PROGRAMS[n].name}: {len(rows)} kernels", flush=True)
            if dry_run:
                for row in rows:
                    print(" ", row["way"][:110], row["modelled"], row["error"])
                continue
            if time.monotonic() > until:
                break
            import torch

            with locked(lock):
                bench = bench or Bench()
                try:
                    found.append(run(PROGRAMS[n], rows, bench))
                except Exception as failed:
                    print(f"{PROGRAMS[n].name}: {type(failed).__name__}: {str(failed)[:300]}")
                torch.cuda.empty_cache()
            header = provenance("turned")
            out.write_text(json.dumps({**header, "programs": found}, indent=1) + "\n")
    finally:
        builder.close()
    print(table(found))


if __name__ == "__main__":
    typer.run(main)
