"""Time every mapping that auto_coalesce proposes for sixty programs, beside the modelled times.

``python3 -m benchmarks.thread_maps --out FILE`` needs a CUDA GPU, torch and nvcc, and takes some
minutes; ``--dry-run`` only counts and models, and needs none of them. Workers schedule, count and
build; this process times, behind a read of other memory that clears the second-level cache. Each
result is compared with torch's first. A kernel of over 50 ms is launched once or twice and no more.

``--drawn`` takes the programs of :mod:`benchmarks.random_shapes` instead, all but means. ``--rows``
takes reductions along rows, with plans of their kernels that are not proposed, beside a plain read,
and ``--groups`` sums of groups of channels.

``python3 -m benchmarks.fit_thread_maps FILE`` fits the model's constants to what was written.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer
from tvm import s_tir

from benchmarks import memory_bound
from benchmarks.limits import VECTOR_BYTES
from benchmarks.thread_programs import ALONG_ROWS, OF_GROUPS, PROGRAMS, Program
from tvm_layout_ext.coalesce.cost import count_kernels
from tvm_layout_ext.coalesce.propose import propose
from tvm_layout_ext.coalesce.request import Request
from tvm_layout_ext.coalesce.rows.chain import read_chain
from tvm_layout_ext.coalesce.rows.plan import RowPlan, ranked_plans
from tvm_layout_ext.coalesce.rows.traffic import RowTraffic
from tvm_layout_ext.coalesce.rows.write import write_chains
from tvm_layout_ext.coalesce.subject import Subject
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.gpu.kernel_time import modelled_seconds
from tvm_layout_ext.ir.annotations import DONE, FUSE_ROWS
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.measure.builder.builder import INFO, LIBRARY, CubinBuilder, build_one
from tvm_layout_ext.tune.measure.builder.host_objects import HostObjects

#: Kernels above this are launched no more than twice, and those modelled above the other not once.
SLOW, HOPELESS = 50e-3, 2.0
WARM_UP, REPEATS = 2, 15
#: Plans of a number of lanes that are timed, of those of the least modelled time.
OF_LANES = 3
#: Bytes that are read before each timed launch.
FLUSH_BYTES = 256 << 20
#: What is asked for: threads, bytes of a vector, and whether loads go through shared memory.
REQUESTS = [
    Request(),
    *(Request(threads) for threads in (64, 128, 256, 512, 1024)),
    *(Request(None, width) for width in (2, 4, 8)),
    Request(None, 16, "shared"),
    Request(256, 4),
    Request(512, 8),
]


@dataclass
class Pair:
    """A program with one way to map it.

    Attributes
    ----------
    program, path, map : str
        The program's name, the kind of mapping, and what is said of it.
    request : list
        ``[num_threads or 0, vector_bytes, stage]``, or the numbers of a plan of rows.
    kernels : list of KernelWork
        As JSON.
    modelled : float
        Seconds.
    folder, error : str, optional
        Where its library lies, or why there is none.
    measured : float, optional
        Median seconds.
    """

    program: str
    path: str
    map: str
    request: list[Any]
    kernels: list[Any]
    modelled: float
    folder: str | None = None
    error: str | None = None
    measured: float | None = None
    least: float | None = None
    registers: int | None = None


def proposals(one: Program, most: int) -> Iterator[tuple[Pair, Any]]:
    """Ways to map a program, each with its module; of equal ones the first."""
    seen: set[str] = set()
    function = one.function()
    for request in REQUESTS:
        sch = s_tir.Schedule(function)
        subject = Subject.of(sch, sch.get_sblock("B"), request)
        for way in propose(subject)[0]:
            program = way.isolated or subject
            trial = program.sch.copy()
            try:
                said = way.apply(trial, program.block)
                trial.annotate(program.block, DONE, way.path)
                works = count_kernels(write_chains(trial.mod["main"])[0])
            except (RuntimeError, ValueError, IndexError):
                continue
            key = hashlib.sha256(trial.mod.script().encode()).hexdigest()
            if key in seen or len(seen) >= most:
                continue
            seen.add(key)
            kernels = [work.to_json() for work in works]
            asked = request.as_annotation()
            pair = Pair(one.name, way.path, said, asked, kernels, modelled_seconds(works))
            yield pair, trial.mod


def plans(one: Program) -> Iterator[tuple[Pair, Any]]:
    """Plans of the kernel of rows of a reduction along them, each with its module."""
    function, seen = one.function(), Counter[int]()
    for plan in ranked_plans(RowTraffic(read_chain(function, ["B"])), architecture("sm_90a")):
        seen[plan.lanes] += 1
        if seen[plan.lanes] <= OF_LANES:
            yield planned(one, function, plan)


def planned(one: Program, function: Any, plan: RowPlan) -> tuple[Pair, Any]:
    """Count a plan of a program's kernel of rows; with its module."""
    sch = s_tir.Schedule(function)
    sch.annotate(sch.get_sblock("B"), FUSE_ROWS, [*plan.numbers(), "B"])
    written, told = write_chains(sch.mod["main"])
    works = count_kernels(written)
    kernels = [work.to_json() for work in works]
    pair = Pair(one.name, "plan", told["B"], plan.numbers(), kernels, modelled_seconds(works))
    return pair, sch.mod


def program(name: str) -> Program:
    """Find a program by its name, drawn ones among them."""
    # That module takes functions from this one.
    from benchmarks.random_shapes import COUNT, programs

    return (PROGRAMS | ALONG_ROWS | OF_GROUPS | {one.name: one for one in programs(COUNT)})[name]


def built(name: str, most: int, rows: bool, parent: str, objects: HostObjects | None) -> list[Pair]:
    """Map a program in every way, and build each; in a worker."""
    one, found = program(name), []
    for pair, module in [*proposals(one, most), *(plans(one) if rows else ())]:
        if objects is not None and pair.modelled < HOPELESS:
            pair.folder = tempfile.mkdtemp(dir=parent)
            job = (module, cuda_target("sm_90a"), pair.folder, objects)
            pair.error = build_one(job)
            if pair.error is None:
                info = json.loads((Path(pair.folder) / INFO).read_text())
                registers = info["registers"]
                many = isinstance(registers, dict)
                pair.registers = max(registers.values()) if many else registers
        found.append(pair)
    return found


class Bench:
    """What all pairs share on the GPU."""

    def __init__(self) -> None:
        import torch

        self._other = torch.empty(FLUSH_BYTES // 4, device="cuda").fill_(1.0)

    def inputs(self, one: Program) -> list[Any]:
        """Random inputs of a program."""
        import torch

        torch.manual_seed(0)
        found = []
        for shape, dtype in one.inputs():
            kind = getattr(torch, dtype)
            if kind.is_floating_point:
                found.append(torch.randn(shape, device="cuda").to(kind))
            else:
                found.append(torch.randint(-100, 100, shape, device="cuda").to(kind))
        return found

    def measure(self, one: Program, pair: Pair, inputs: list[Any], want: list[Any]) -> None:
        """Verify and time one pair."""
        import torch

        run = tvm.runtime.load_module(os.path.join(str(pair.folder), LIBRARY))["main"]
        outs = [
            torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
            for shape, dtype in one.results()
        ]
        for out in outs:
            out.fill_(float("nan") if out.is_floating_point() else 85)
        views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, *outs)]
        run(*views)
        torch.cuda.synchronize()
        pair.error = wrong(one, inputs, outs, want)
        first = self._seconds(lambda: run(*views))
        if first > SLOW:
            pair.measured = pair.least = first
            return
        times = [self._seconds(lambda: run(*views)) for _ in range(WARM_UP + REPEATS)][WARM_UP:]
        pair.measured, pair.least = statistics.median(times), min(times)

    def _seconds(self, call: Any) -> float:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._other.sum()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def wrong(
    one: Program, inputs: Sequence[Any], got: Sequence[Any], want: Sequence[Any]
) -> str | None:
    """Say what differs from torch's results; sums may in their last bits."""
    if one.kind == "argmax":
        # Of equal values torch names any.
        index = got[0].long().clamp(0, one.shape[one.axes[0]] - 1).unsqueeze(one.axes[0])
        got = [inputs[0].gather(one.axes[0], index).squeeze(one.axes[0]), got[1]]
        want = [want[1], want[1]]
    for ours, theirs in zip(got, want, strict=True):
        here, there = ours.double(), theirs.double()
        is_sum = one.kind in ("sum", "mean") and theirs.is_floating_point()
        off = ~((here - there).abs() <= (1e-3 * max(1.0, float(there.abs().max())) * is_sum))
        if bool(off.any()):
            return f"WrongResult: {int(off.sum()):,} of {ours.numel():,} elements differ"
    return None


def _every(names: Sequence[str], most: int, rows: bool, deadline: float) -> Iterator[list[Pair]]:
    """Pairs of all programs, built by 14 processes, in the order of the programs."""
    builder = CubinBuilder(
        "sm_90a", workers=min(14, max(1, (os.cpu_count() or 2) - 2)), timeout=120
    )
    try:
        waiting: list[Future[list[Pair]]] = [
            builder.apart(built, name, most, rows, str(builder.folder), builder._objects)
            for name in names
        ]
        for name, future in zip(names, waiting, strict=True):
            try:
                yield future.result(timeout=max(1.0, deadline - time.monotonic()))
            except Exception as error:
                kind = type(error).__name__
                yield [Pair(name, "", "", [], [], 0.0, error=f"{kind}: {str(error)[:300]}")]
            if time.monotonic() > deadline:
                return
    finally:
        builder.close()


def _write(out: Path, pairs: Sequence[Pair], header: dict[str, Any]) -> None:
    rows = [asdict(pair) for pair in pairs if pair.error is None or "OutOfMemory" not in pair.error]
    for row in rows:
        row.pop("folder")
    text = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
    out.write_text(f'{{"header": {json.dumps(header)},\n"pairs": [\n{text}\n]}}\n')


def _names(drawn: bool, rows: bool, groups: bool) -> list[str]:
    from benchmarks.random_shapes import COUNT, programs

    if rows:
        return [*ALONG_ROWS]
    if groups:
        return [*OF_GROUPS]
    return [one.name for one in programs(COUNT) if len(one.blocks) == 1] if drawn else [*PROGRAMS]


def main(
    out: Annotated[Path, typer.Option(help="Write every pair here, as JSON.")],
    seconds_limit: Annotated[float, typer.Option(help="End after so many seconds.")] = 420.0,
    most: Annotated[int, typer.Option(help="Mappings of a program.")] = 30,
    only: Annotated[str, typer.Option(help="Only names with one of these in them: sum-,max-")] = "",
    drawn: Annotated[bool, typer.Option(help="Take the programs of random_shapes.")] = False,
    rows: Annotated[bool, typer.Option(help="Take reductions along rows, and plans.")] = False,
    groups: Annotated[bool, typer.Option(help="Take sums of groups of channels.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Count and model; build and time nothing.")] = False,
) -> None:
    """Time every mapping of every program, and write what was counted, modelled and measured."""
    start = time.monotonic()
    names = _names(drawn, rows, groups)
    names = [name for name in names if any(text in name for text in only.split(","))]
    random.Random(0).shuffle(names)
    pairs: list[Pair] = []
    header: dict[str, Any] = {"gpu": None, "dry_run": dry_run}
    if dry_run:
        for name in names:
            pairs += built(name, most, rows, "", None)
            _write(out, pairs, header)
            print(f"{name}: {len(pairs)} pairs, {time.monotonic() - start:.0f} s", flush=True)
        return
    import torch

    header |= {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "revision": os.environ.get("TVM_LAYOUT_EXT_GIT_ID", "unknown"),
        "flush_bytes": FLUSH_BYTES,
        "repeats": REPEATS,
        "reads": {},
    }
    bench, reads = Bench(), memory_bound.Bench() if rows else None
    # This process has its GPU by now; builders need none, nor the memory of a context each.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    for found in _every(names, most, rows, start + seconds_limit):
        one = program(found[0].program) if found else None
        inputs = bench.inputs(one) if one else []
        want = one.torch(*inputs) if one else []
        for pair in found:
            if pair.folder is not None and pair.error is None and one is not None:
                try:
                    bench.measure(one, pair, inputs, want)
                except Exception as error:
                    pair.error = f"{type(error).__name__}: {str(error)[:300]}"
        if reads is not None and one is not None:
            size = one.bytes() // (2 * VECTOR_BYTES) * (2 * VECTOR_BYTES)
            header["reads"][one.name] = min(reads.medians(reads.reads(size)).values())
        pairs += found
        _write(out, pairs, header)
        done = sum(pair.measured is not None for pair in pairs)
        print(f"{done} of {len(pairs)} pairs, {time.monotonic() - start:.0f} s", flush=True)
        torch.cuda.empty_cache()
    for pair in sorted(pairs, key=lambda pair: (pair.program, pair.measured or 0.0)):
        if pair.measured:
            times = f"{pair.measured * 1e6:9.1f} us, modelled {pair.modelled * 1e6:9.1f}"
            print(f"{pair.program:44}{times}  {pair.path}, {pair.map} {pair.request}")
        if pair.error:
            print(f"{pair.program} {pair.map} {pair.request}: {pair.error.splitlines()[0]}")


if __name__ == "__main__":
    typer.run(main)
