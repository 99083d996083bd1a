"""``tvm-layout bench --suite NAME``: run a suite's script and table its kernels beside their peers.

``python -m benchmarks.suites NAME [--results FILE] [--plot FILE]``. A suite is a script of this
folder; it needs a GPU and takes minutes. With ``--results``, and where there is no GPU, the figures
are those of a file that such a run has written, by default the committed one of an H200.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_layout_ext._compat import has_gpu
from tvm_layout_ext.gpu.hardware import MULTIPROCESSORS
from tvm_layout_ext.gpu.measured import H200
from tvm_layout_ext.gpu.warpgroups import WARPGROUP_RATE
from tvm_layout_ext.report.drawing.figures import Chart
from tvm_layout_ext.text import columns

RESULTS = Path(__file__).parent / "results"
#: Whom ours is compared with, where a script has them. Products and attention of torch.compile are
#: torch's own kernels.
PEERS = ("torch", "torch.compile", "Triton", "TileLang", "dlight")
#: Their names in the files; of several names of one peer, such as two kernels of torch, the faster.
NAMES = {
    "torch eager": "torch", "cublas": "torch", "cudnn": "torch", "flash": "torch",
    "triton": "Triton", "tilelang": "TileLang",
}  # fmt: skip
#: Operations a second of warpgroups on halves, as this package's benchmarks reach them.
_HALF_PEAK = WARPGROUP_RATE * H200.clock * MULTIPROCESSORS
_COLOURS = {
    "ours": "#0b6bcb", "torch": "#d9822b", "torch.compile": "#8c5fbf", "Triton": "#2e8b57",
    "TileLang": "#a0522d", "dlight": "#9aa4b1",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One kernel or model: microseconds of each contestant, and of the limit where one is known."""

    name: str
    us: dict[str, float]
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        """The fastest peer's time over ours: above 1 is faster than all."""
        peers = [self.us[peer] for peer in PEERS if peer in self.us]
        return min(peers) / self.us["ours"] if peers else None

    @property
    def share(self) -> float | None:
        """The limit's time over ours."""
        return self.limit / self.us["ours"] if self.limit else None

    def cells(self, peers: list[str]) -> list[str]:
        """As text; a dash is unknown."""
        times = [_text(self.us.get(one), "{:,.1f}") for one in ("ours", *peers)]
        return [self.name, *times, _text(self.ratio, "{:.2f}"), _text(self.share, "{:.0%}")]


def table(rows: list[Row]) -> list[list[str]]:
    """Heads, and cells of each row, of the peers that there are."""
    peers = [one for one in PEERS if any(one in row.us for row in rows)]
    heads = ["us", "ours", *peers, "best peer / ours", "of the limit"]
    return [heads, *(row.cells(peers) for row in rows)]


def _text(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _named(times: dict[str, float]) -> dict[str, float]:
    """Times by the peers' names here."""
    found: dict[str, float] = {}
    for name, value in times.items():
        peer = NAMES.get(name, name)
        if peer == "ours" or peer in PEERS:
            found[peer] = min(value, found.get(peer, value))
    return found


def _timed(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """Rows with seconds, those of limits among them."""
    for row in rows:
        us = {name: 1e6 * seconds for name, seconds in row["seconds"].items()}
        limits = [value for name, value in us.items() if name.startswith("limit: ")]
        yield Row(row["name"], _named(us), min(limits, default=None))


def _products(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """Rows of TFLOPS, of default configurations."""
    for row in rows:
        m, n, k = row["shape"]
        if row.get("default", not row.get("more")) and "ours" in row:
            who = [name for name in ("ours", "cublas", "triton") if name in row]
            us = {name: 2e-6 * m * n * k / row[name] for name in who}
            name = f"{m}x{n}x{k} {row['layout']} {row['dtype']}"
            yield Row(name, _named(us), 2e6 * m * n * k / _HALF_PEAK)


def _attention(rows: list[dict[str, Any]]) -> Iterator[Row]:
    for row in rows:
        shape = "x".join(map(str, row["shape"]))
        causal = ", causal" if row["causal"] else ""
        flops = row["us"]["ours"] * row["tflops"]["ours"] * 1e6
        yield Row(f"{shape} {row['dtype']}{causal}", _named(row["us"]), 1e6 * flops / _HALF_PEAK)


def _models(rows: list[dict[str, Any]]) -> Iterator[Row]:
    for row in rows:
        if "sums" in row:
            yield Row(row["model"], _named(row["sums"]))


def _convolutions(rows: list[dict[str, Any]]) -> Iterator[Row]:
    """Rows of ``benchmarks.conv``, whose first contestant of ours is the default; or of models."""
    for row in rows:
        if "case" in row:
            mine = next(name for name in row["us"] if name != "cudnn")
            us = {"ours": row["us"][mine], "cudnn": row["us"]["cudnn"]}
            limit = us["ours"] * row["tflops"][mine] * 1e12 / _HALF_PEAK
            yield Row("x".join(map(str, row["case"])), _named(us), limit)
    yield from (row for row in _models(rows) if _CONVOLUTIONS.search(row.name))


#: Models that are mostly convolutions.
_CONVOLUTIONS = re.compile(r"conv|resnet|mobilenet|depthwise|u-net", re.IGNORECASE)


@dataclass(frozen=True)
class Suite:
    """A script's words, where its committed results are, how they are read, and what they are."""

    command: tuple[str, ...]
    file: str
    read: Callable[[list[dict[str, Any]]], Iterator[Row]]
    about: str


_ALL = "Sums of kernel times of whole models, and of parts of them."
SUITES = {
    "gemm": Suite(
        ("hopper_check", "--cases", "suite"), "h200_hopper_gemm.json", _products,
        "Products on tensor cores; the limit is what wgmma reaches in benchmarks.",
    ),
    "memory": Suite(
        ("memory_bound", "time"), "h200_memory_bound.json", _timed,
        "Kernels that only move memory; the limit is the fastest copy, or read, of as many bytes.",
    ),
    "norm": Suite(
        ("rows",), "h200_rows.json", _timed,
        "Softmax and norms; the limit is the fastest copy of as many bytes.",
    ),
    "attention": Suite(
        ("attention",), "h200_attention.json", _attention,
        "Attention: batch, heads of Q and K, queries, keys, columns; the limit as of products.",
    ),
    "conv": Suite(
        ("conv",),
        "h200_models.json",
        _convolutions,
        "Convolutions: side, channels in and out, window, stride; or sums of kernels of a model.",
    ),
    "models": Suite(("models",), "h200_models.json", _models, _ALL),
}  # fmt: skip


def read(suite: Suite, file: Path) -> list[Row]:
    """The rows of a file of results, in its order; of two of one name the first."""
    rows: dict[str, Row] = {}
    for row in suite.read(json.loads(file.read_text())["rows"]):
        rows.setdefault(row.name, row)
    return list(rows.values())


def chart(name: str, rows: list[Row]) -> Chart:
    """Times over the fastest of the row: a dot a contestant, the fastest at 1."""
    made = Chart(f"{name}: times over the fastest", height=90 + 17 * len(rows))
    for one in ("ours", *PEERS):
        found = [
            (row.us[one] / min(row.us.values()), n) for n, row in enumerate(rows) if one in row.us
        ]
        if found:
            slow, at = zip(*found, strict=True)
            # Ours is seen where others are as fast.
            above = 3 if one == "ours" else 2
            made.axes.plot(slow, at, "o", zorder=above, color=_COLOURS[one], label=one, ms=6)
    made.axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=8)
    made.axes.invert_yaxis()
    made.set_scales(x=True, only="x")
    made.name_axes(f"{name}: time over the fastest's")
    made.add_legend()
    return made


def run(suite: Suite, out: Path) -> None:
    """Run a suite's script, which writes its results; end as it ends if it fails."""
    module, *words = suite.command
    command = [sys.executable, "-m", f"benchmarks.{module}", *words, "--out", str(out)]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=False)
    if done.returncode or not out.exists():
        typer.echo(f"Error: benchmarks/{module}.py ended with {done.returncode}.", err=True)
        raise typer.Exit(1)


def main(
    name: Annotated[str, typer.Argument(help=", ".join(SUITES))],
    results: Annotated[Path | None, typer.Option(help="Results to show, and run nothing.")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG file to draw.")] = None,
) -> None:
    """Table a suite, and draw it."""
    if name not in SUITES:
        typer.echo(f"Error: There is no suite {name}; there are {', '.join(SUITES)}.", err=True)
        raise typer.Exit(2)
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as folder:
        if results is None and has_gpu():
            run(suite, results := Path(folder) / suite.file)
        elif results is None:
            results = RESULTS / suite.file
            print(f"No CUDA GPU on this machine: these are committed results, {results.name}.\n")
        rows = read(suite, results)
    print(f"{suite.about}\n")
    heads, *cells = table(rows)
    print(columns(heads, cells))
    if plot is not None:
        plot.write_bytes(chart(name, rows).png(""))
        print(f"Wrote {plot}.")


if __name__ == "__main__":
    typer.run(main)
