"""Time kernels that only move memory beside torch eager, torch.compile and Triton, in one process.

``python -m benchmarks.memory_bound --out FILE`` needs a CUDA GPU, torch and Triton. Every row has
the speed of a plain copy, or for sums of a plain read, of as many bytes as its limit. All kernels
of a row take turns, so that the clock's drift hits all alike; medians of CUDA events are written.
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tvm
import typer

import tvm_layout_ext as tlx
from benchmarks import counters
from tvm_layout_ext import te
from tvm_layout_ext.schedules.column_sum import compute as column_sum
from tvm_layout_ext.schedules.permute import permuted
from tvm_layout_ext.schedules.row_sum import compute as row_sum

#: Runs before timing, and timed runs.
WARM_UP, REPEATS = 3, 15
SIDE = 16384
IMAGES = (64, 256, 56, 56)
HEADS = (8, 4096, 32, 128)
SUMS = (32768, 4096)


@dataclass(frozen=True)
class Row:
    """One operation at one size.

    Attributes
    ----------
    name : str
    shape, dtype : tuple of int, str
        Of the input.
    tensors : callable
        The computation, input first.
    torch : callable
        From the input to the result.
    triton : callable
        ``triton(kernels, a, b)`` writes the result.
    is_sum : bool
        Reads only, so that reading is its limit.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    tensors: Callable[[], list[Any]]
    torch: Callable[[Any], Any]
    triton: Callable[[Any, Any, Any], None]
    is_sum: bool = False


def _copied(shape: tuple[int, ...], dtype: str, to: str | None = None) -> list[Any]:
    a = te.placeholder(shape, dtype, "A")
    b = te.compute(shape, lambda *i: a[i].astype(to) if to else a[i], "B")
    return [a, b]


def _move(name: str, shape: tuple[int, ...], dtype: str, order: tuple[int, ...]) -> Row:
    """Make the row of a permutation; Triton's kernel does it as a batch of transposes."""
    return Row(
        f"{name} {dtype}",
        shape,
        dtype,
        lambda: permuted(shape, dtype, order),
        lambda a: a.permute(*order).contiguous(),
        lambda kernels, a, b: kernels.transpose(a, b, order),
    )


def rows() -> list[Row]:
    """All rows of the table."""
    import torch

    square = (SIDE, SIDE)
    images_back = (IMAGES[0], *IMAGES[2:], IMAGES[1])
    return [
        *(_move("transpose", square, dtype, (1, 0)) for dtype in ("float32", "float16", "int8")),
        _move("NCHW to NHWC", IMAGES, "float16", (0, 2, 3, 1)),
        _move("NHWC to NCHW", images_back, "float16", (0, 3, 1, 2)),
        Row(
            "BSHD to BHSD float16",
            HEADS,
            "float16",
            lambda: permuted(HEADS, "float16", (0, 2, 1, 3)),
            lambda a: a.transpose(1, 2).contiguous(),
            lambda kernels, a, b: kernels.swap_middle(a, b),
        ),
        Row(
            "copy float16",
            square,
            "float16",
            lambda: _copied(square, "float16"),
            lambda a: a.clone(),
            lambda kernels, a, b: kernels.copy(a, b),
        ),
        Row(
            "cast float16 to float32",
            square,
            "float16",
            lambda: _copied(square, "float16", "float32"),
            lambda a: a.float(),
            lambda kernels, a, b: kernels.copy(a, b),
        ),
        Row(
            "row sum float16",
            SUMS,
            "float16",
            lambda: row_sum(SUMS, "float16"),
            lambda a: a.sum(1, dtype=torch.float32),
            lambda kernels, a, b: kernels.row_sum(a, b),
            is_sum=True,
        ),
        Row(
            "column sum float16",
            SUMS,
            "float16",
            lambda: column_sum(SUMS, "float16"),
            lambda a: a.sum(0, dtype=torch.float32),
            lambda kernels, a, b: kernels.column_sum(a, b),
            is_sum=True,
        ),
    ]


def scheduled(tensors: list[Any]) -> Any:
    """Leave the mapping of the output to auto_coalesce, and build."""
    s = te.create_schedule(tensors[-1].op)
    s[tensors[-1]].auto_coalesce()
    return tlx.build(s, tensors)["main"]


def draw(shape: tuple[int, ...], dtype: str) -> Any:
    """Random values: the speed of memory depends on what is moved."""
    import torch

    if dtype == "int8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
    return torch.randn(shape, dtype=getattr(torch, dtype), device="cuda")


def medians(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of each call; they take turns."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(WARM_UP + REPEATS):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= WARM_UP:
                times[name].append(begin.elapsed_time(end) / 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def run(row: Row, kernels: Any) -> dict[str, Any]:
    """Verify and time one row."""
    import torch

    a = draw(row.shape, row.dtype)
    want = row.torch(a)
    compiled = torch.compile(row.torch, dynamic=False)
    ours = scheduled(row.tensors())
    outputs = {name: torch.empty_like(want) for name in ("ours", "triton")}
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (a, outputs["ours"])]
    calls: dict[str, Callable[[], Any]] = {
        "ours": lambda: ours(*views),
        "torch eager": lambda: row.torch(a),
        "torch.compile": lambda: compiled(a),
        "triton": lambda: row.triton(kernels, a, outputs["triton"]),
    }
    for output in outputs.values():
        output.fill_(float("nan") if output.is_floating_point() else 85)
    for name, call in calls.items():
        got = call()
        torch.cuda.synchronize()
        check(name, row, outputs.get(name, got), want)
    size = a.nbytes if row.is_sum else a.nbytes + want.nbytes
    seconds = medians(calls | limits(row, size, kernels))
    limit = min(t for name, t in seconds.items() if name.startswith("limit"))
    return {
        "name": row.name,
        "shape": row.shape,
        "bytes": size,
        "seconds": seconds,
        "tb_per_s": {name: size / t / 1e12 for name, t in seconds.items()},
        "of_limit": limit / seconds["ours"],
        "of_best_peer": min(seconds[name] for name in list(calls)[1:]) / seconds["ours"],
    }


def limits(row: Row, size: int, kernels: Any) -> dict[str, Callable[[], Any]]:
    """Kernels that do nothing but copy, or read, the bytes of a row."""
    import torch

    if row.is_sum:
        source = draw((size // 4,), "float32")
        sink = torch.zeros(1, device="cuda")
        return {
            "limit: read": lambda: kernels.read(source, sink),
            "limit: torch sum": lambda: source.sum(),
        }
    source = draw((size // 8,), "float32")
    targets = [torch.empty_like(source) for _ in range(2)]
    copy = scheduled(_copied(tuple(source.shape), "float32"))
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (source, targets[1])]
    return {
        "limit: torch copy": lambda: targets[0].copy_(source),
        "limit: our copy": lambda: copy(*views),
    }


def check(name: str, row: Row, got: Any, want: Any) -> None:
    """Stop at a wrong result; sums may differ in the last bits."""
    import torch

    tolerance = {"rtol": 1e-3, "atol": 0.1} if row.is_sum else {"rtol": 0.0, "atol": 0.0}
    if not torch.allclose(got.float(), want.float(), **tolerance):
        raise SystemExit(f"{name} computes {row.name} wrongly.")


def table(results: list[dict[str, Any]]) -> str:
    """One line a row, in TB/s."""
    names = ("ours", "torch eager", "torch.compile", "triton")
    lines = [f"{'TB/s':26}" + "".join(f"{n:>15}" for n in (*names, "limit", "of limit", "of best"))]
    for result in results:
        speed = result["tb_per_s"]
        limit = max(value for name, value in speed.items() if name.startswith("limit"))
        cells = [*(f"{speed[name]:.2f}" for name in names), f"{limit:.2f}"]
        cells += [f"{result['of_limit']:.3f}", f"{result['of_best_peer']:.3f}"]
        lines.append(f"{result['name']:26}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def main(
    out: Annotated[Path, typer.Option(help="Write the raw times here, as JSON.")],
    only: Annotated[str, typer.Option(help="Only rows whose name contains this.")] = "",
) -> None:
    """Time every row; print the table."""
    import torch
    import triton

    from benchmarks import triton_memory_bound as kernels

    results: list[dict[str, Any]] = []
    for row in rows():
        if only in row.name:
            results.append(run(row, kernels))
            torch.cuda.empty_cache()
    record = {
        "command": "python -m benchmarks.memory_bound",
        "environment": counters.environment(),
        "versions": {
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
        },
        "rows": results,
    }
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    typer.run(main)
