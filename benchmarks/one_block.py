"""Time transposes of ragged tensors that one block holds whole, beside the same in tiles.

``python -m benchmarks.one_block --out FILE`` needs a CUDA GPU and torch. Each case is mapped by
``stage="whole"`` (a block holds the tensor, or each slab of a batch, and every sector moves once)
and in tiles by ``stage="auto"``. A time is the median over rounds of a CUDA graph of 100 launches
one after the other, over 100: no launch waits for the host, and caches are warm as far as they hold
the two tensors. Results are checked before and after.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tvm_layout_ext.target import cuda_target, default_arch

__all__ = ["CASES", "Case"]

LAUNCHES, ROUNDS = 100, 21
ABOUT = (
    "Transposes of the last two dims, ragged on both sides: microseconds of a launch in a CUDA "
    "graph of 100 on the same tensors, by blocks that each hold the tensor or a slab of a batch "
    "(one_block) and by blocks of tiles (tiles); with what auto_coalesce says of each."
)


@dataclass(frozen=True)
class Case:
    """A tensor whose last two dims are exchanged.

    Attributes
    ----------
    shape : tuple of int
    dtype : str
    threads : int, optional
        Threads with which ``stage="auto"`` takes tiles, where it takes slabs by itself.
    """

    shape: tuple[int, ...]
    dtype: str
    threads: int | None = None

    @property
    def name(self) -> str:
        """Shape and type."""
        return f"{'x'.join(map(str, self.shape))} {self.dtype}"

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return (*self.shape[:-2], self.shape[-1], self.shape[-2])

    def mapped(self, target: Any, *, whole: bool) -> tuple[s_tir.Schedule, str]:
        """Map it for a target; also how."""
        a = te.placeholder(self.shape, self.dtype, "A")
        b = te.compute(self.result, lambda *i: a(*i[:-2], i[-1], i[-2]), "B")
        sch = s_tir.Schedule(te.create_prim_func([a, b]))
        with target:
            if whole:
                outcome = sch.auto_coalesce("B", stage="whole")
            else:
                outcome = sch.auto_coalesce("B", num_threads=self.threads)
        return sch, outcome.text.split(";")[0]


CASES = [
    Case((33, 1000), "float16"),
    Case((300, 300), "float16"),
    Case((4097, 7), "float16"),
    Case((127, 129), "float32"),
    Case((100, 100), "float32"),
    Case((64, 100, 100), "float32"),
    Case((1024, 100, 100), "float32", threads=512),
    Case((1024, 33, 65), "float16"),
    Case((33, 7, 33), "float32"),
    Case((4096, 7, 33), "float32"),
]


def microseconds(kernel: Any, case: Case) -> float:
    """Time a kernel as one graph of launches; its result is checked."""
    import torch
    import tvm_ffi

    dtype = getattr(torch, case.dtype)
    x = torch.randint(-100, 100, case.shape, device="cuda").to(dtype)
    y = torch.full(case.result, 77, device="cuda").to(dtype)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), tvm_ffi.use_torch_stream():
        kernel(x, y)
        stream.synchronize()
    check(x, y, case)
    with torch.cuda.graph(graph, stream=stream), tvm_ffi.use_torch_stream():
        for _ in range(LAUNCHES):
            kernel(x, y)
    y.fill_(77)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    found = []
    for _ in range(ROUNDS):
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) * 1000 / LAUNCHES)
    check(x, y, case)
    return median(found)


def check(x: Any, y: Any, case: Case) -> None:
    """Compare a result with torch's."""
    import torch

    if not torch.equal(y, x.swapaxes(-1, -2)):
        raise RuntimeError(f"{case.name}: the result is wrong.")


def measure(case: Case, target: Any) -> dict[str, Any]:
    """Build and time both ways of a case."""
    row: dict[str, Any] = {"case": case.name}
    for name, whole in (("one_block", True), ("tiles", False)):
        sch, text = case.mapped(target, whole=whole)
        kernel = tlx.build(sch, target=target)["main"]
        row |= {f"{name}_us": round(microseconds(kernel, case), 2), name: text}
    return row


def said(*command: str) -> str:
    """Run a command; its first line."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0]


def main(out: Annotated[Path, typer.Option(help="JSON file to write.")]) -> None:
    """Time all cases."""
    target = cuda_target(default_arch())
    gpu, driver = said(
        "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"
    ).split(", ")
    rows = []
    for case in CASES:
        rows.append(row := measure(case, target))
        print(f"{row['case']:24} {row['one_block_us']:8} {row['tiles_us']:8}", flush=True)
    found = {
        "about": ABOUT,
        "device": f"{gpu}, {target.attrs['arch']}, driver {driver}",
        "revision": os.environ.get("TVM_LAYOUT_EXT_GIT_ID", "unknown"),
        "rows": rows,
    }
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
