"""Time the pipelines that are no products, in 1 to 6 versions, beside torch, in one process.

``python -m benchmarks.pipelined time --out FILE`` needs a CUDA GPU, torch and nvcc. Every row has a
streamed kernel in each number of versions, copied asynchronously and through registers, torch eager
and torch.compile, and the fastest plain reads or copies of as many bytes. All take turns, with cold
caches, as in :mod:`benchmarks.memory_bound`, whose machinery this is. Raw times are written.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
import typer

import tvm_layout_ext as tlx
from benchmarks.memory_bound import Bench, Only, Out, compiled_by_torch, draw, provenance
from benchmarks.memory_rows import Row
from tvm_layout_ext.schedules import stencil, stream_reduce
from tvm_layout_ext.tune.space.operator import Operator, Tolerance

__all__ = ["STREAMS", "Stream", "summary", "table"]

STAGES = range(1, 7)
SUMS, SIDE = (32768, 4096), 16384
_PEERS = ("torch eager", "torch.compile")


@dataclass(frozen=True)
class Stream:
    """One operator at one size.

    Attributes
    ----------
    operator : Operator
    shape : tuple of int
    dtype : str
    torch : callable
        From the inputs to the result, as a user of torch would write it.
    is_sum : bool
        Reads only, so that reading is its limit.
    """

    operator: Operator
    shape: tuple[int, ...]
    dtype: str
    torch: Callable[..., Any]
    is_sum: bool = False

    @property
    def name(self) -> str:
        """Operator, size and type."""
        return f"{self.operator.name} {'x'.join(map(str, self.shape))} {self.dtype}"

    def configs(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The default configuration in all numbers of versions, by either way to copy."""
        for asynchronous, way in ((1, "cp.async"), (0, "registers")):
            for stages in STAGES:
                changes = {"stages": stages, "asynchronous": asynchronous}
                yield f"{way} {stages}", self.operator.default_config() | changes

    def row(self) -> Row:
        """What :class:`benchmarks.memory_bound.Bench` wants to know of it."""

        def triton(*_: Any) -> None:
            raise NotImplementedError("no Triton kernel takes part")

        moved = self.operator.traffic(self.shape, self.dtype)
        return Row(self.name, self.tensors, self.torch, triton, moved, self.is_sum)

    def tensors(self) -> list[Any]:
        """What is computed."""
        return self.operator.compute(self.shape, self.dtype)

    def built(self, config: dict[str, Any]) -> Any:
        """Compile a configuration."""
        return tlx.build(self.operator.schedule(self.tensors(), config))["main"]


def _flow(a: Any) -> Any:
    import torch

    p = torch.nn.functional.pad(a.float(), (1, 1, 1, 1))
    around = p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]
    return (p[1:-1, 1:-1] * stencil.CENTRE + around * stencil.NEIGHBOUR).to(a.dtype)


def _weighted(a: Any, x: Any) -> Any:
    return a @ x


STREAMS = tuple(
    Stream(operator, shape, dtype, peer, is_sum)
    for operator, shape, peer, is_sum in (
        (stream_reduce.OPERATOR, SUMS, _weighted, True),
        (stencil.OPERATOR, (SIDE, SIDE), _flow, False),
    )
    for dtype in ("float16", "float32")
)


def contestants(stream: Stream) -> dict[str, Callable[[], Any]]:
    """All kernels of a row on the same inputs, each verified on a poisoned output first."""
    import torch

    shapes = stream.row().shapes()
    inputs = [draw(*each) for each in shapes[:-1]]
    compiled = compiled_by_torch(stream.torch)
    want = stream.torch(*(x.double() for x in inputs)) if stream.is_sum else _flow(inputs[0])
    calls: dict[str, Callable[[], Any]] = {}
    shape, dtype = shapes[-1]
    out = torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    views = [tvm.runtime.from_dlpack(tensor) for tensor in (*inputs, out)]
    for name, config in stream.configs():
        out.fill_(float("nan"))
        calls[name] = partial(stream.built(config), *views)
        calls[name]()
        torch.cuda.synchronize()
        check(name, stream, out, want, stream.operator.tolerance(stream.shape, stream.dtype))
    calls["torch eager"] = partial(stream.torch, *inputs)
    calls["torch.compile"] = partial(compiled, *inputs)
    for name in _PEERS:
        # Torch rounds a product of halves to a half.
        check(name, stream, calls[name](), want, Tolerance(rtol=1e-2, atol=0.1))
    return calls


def check(name: str, stream: Stream, got: Any, want: Any, tolerance: Tolerance) -> None:
    """Stop at a wrong result."""
    import torch

    near = {"rtol": tolerance.rtol, "atol": tolerance.atol}
    if not torch.allclose(got.double(), want.double(), **near):
        raise SystemExit(f"{name} computes {stream.name} wrongly.")


def summary(
    stream: Stream, times: dict[str, list[float]], first: dict[str, float]
) -> dict[str, Any]:
    """Everything about a row that is written: raw times, medians, speeds and ratios."""
    size = stream.operator.traffic(stream.shape, stream.dtype)
    median = {name: statistics.median(values) for name, values in times.items()}
    ours = {name: median[name] for name, _ in stream.configs()}
    best = min(ours, key=ours.__getitem__)
    limit = min(t for name, t in median.items() if name.startswith("limit"))
    return {
        "name": stream.name,
        "bytes": size,
        "configs": dict(stream.configs()),
        "times": times,
        "seconds": median,
        "tb_per_s": {name: size / t / 1e12 for name, t in median.items()},
        "limits_tried_tb_per_s": {name: size / t / 1e12 for name, t in first.items()},
        "best": best,
        "of_limit": limit / median[best],
        "of_best_peer": min(median[name] for name in _PEERS) / median[best],
    }


def table(results: list[dict[str, Any]]) -> str:
    """TB/s: a column a row, a line a kernel."""
    lines = [" " * 16 + "".join(f"{result['name']:>36}" for result in results)]
    names = [name for name in results[0]["seconds"] if not name.startswith("limit")]
    for name in names:
        cells = "".join(f"{result['tb_per_s'][name]:36.2f}" for result in results)
        lines.append(f"{name:16}{cells}")
    for name in ("of_limit", "of_best_peer"):
        cells = "".join(f"{result[name]:36.3f}" for result in results)
        lines.append(f"{name:16}{cells}")
    return "\n".join(lines)


app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """Pipelines that are no products."""


@app.command("time")
def time_command(out: Out, only: Only = "") -> None:
    """Time every row; print the table."""
    import torch

    bench = Bench()
    results: list[dict[str, Any]] = []
    for stream in (stream for stream in STREAMS if only in stream.name):
        chosen, first = bench.limits(stream.row())
        times = bench.seconds(contestants(stream) | chosen)
        results.append(summary(stream, times, first))
        torch.cuda.empty_cache()
        # After each row: a run that is cut off leaves what it has.
        record = provenance("pipelined") | {"rows": results}
        out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    app()
