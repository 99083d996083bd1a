"""``demo``: a transpose, wrong and right, and its tuning, in half a minute without a GPU."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import command

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from tvm import s_tir

    from ..simulate.report import Report
    from ..tune.search.tune import Result

_SIZE, _TILE, _WIDTH, _BAR = 1024, 32, 80, 24
#: Blocks that are run; every block does the same.
_SAMPLE = 4
_FOLDER = Path("demo_logs")


@command()
def demo(
    log: Annotated[Path, typer.Option(help="Folder for the records and the page.")] = _FOLDER,
) -> None:
    """Show on a transpose what is checked and what is mended; ends with a page to open."""
    from rich.console import Console

    console = Console(width=_WIDTH, highlight=False)
    start = time.perf_counter()
    console.print(
        f"Transposing {_SIZE} x {_SIZE} floats through a {_TILE} x {_TILE} tile in shared memory, "
        "on the simulated GPU: no GPU needed, every access counted.\n"
    )
    console.print(_kernels())
    result = _tuned(log)
    _print_tuning(console, result)
    page = _page(log, result)
    # Not by rich, which would break an address in two.
    typer.echo(
        f"\n{time.perf_counter() - start:.1f} s. Open the page: file://{page}\n"
        "Next: README.md has this kernel as a program; for an operator of your size run\n"
        "tvm-layout tune softmax --shape 4096 1024 --trials 8 --log logs"
    )


def transposed(*, pad: int = 0, rows: int = 8, swizzle: str = "") -> s_tir.Schedule:
    """The README's transpose; ``pad`` is the shift of its rows, ``rows`` those of its threads."""
    from .. import te

    A = te.placeholder((_SIZE, _SIZE), "float32", name="A")
    B = te.compute((_SIZE, _SIZE), lambda j, i: A[i, j], name="B")
    s = te.create_schedule(B.op)
    tile = s.cache_read(A, "shared", [B])
    j, i = B.op.axis
    jo, io, ji, ii = s[B].tile(j, i, _TILE, _TILE)
    s[B].bind(jo, te.thread_axis("blockIdx.y"))
    s[B].bind(io, te.thread_axis("blockIdx.x"))
    s[tile].compute_at(s[B], io)
    for stage, y, x in ((s[B], ji, ii), (s[tile], *tile.op.axis)):
        _, ty = stage.split(y, factor=rows)
        stage.bind(ty, te.thread_axis("threadIdx.y"))
        stage.bind(x, te.thread_axis("threadIdx.x"))
    if pad:
        s[tile].storage_align(tile.op.axis[0], _TILE, pad)
    sch = s.to_schedule([A, B])
    if swizzle:
        sch.swizzle("A_shared", 0, swizzle)
    return sch


def without_barrier(sch: s_tir.Schedule) -> Any:
    """The device program of a schedule, without its barriers: what a forgotten one is."""
    import tvm_ffi
    from tvm import tirx

    from ..build import device_program
    from ..ir import ops
    from ..ir.device_program import DeviceProgram
    from ..ir.queries import is_call_of

    def dropped(stmt: Any) -> Any:
        return tirx.Evaluate(0) if is_call_of(stmt.value, ops.TVM_STORAGE_SYNC) else None

    made = device_program(sch)
    kernels = {
        name: func.with_body(tvm_ffi.structural_map(func.body, [(tirx.Evaluate, dropped)]))
        for name, func in made.kernels.items()
    }
    return DeviceProgram(made.host, kernels, made.target, made.source)


def _kernels() -> Table:
    """Run the four kernels; a table with a bar for each, and what the race detector says."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, caption_style="", caption_justify="left")
    table.add_column("kernel")
    table.add_column("conflicts", justify="right")
    table.add_column("passes of a warp's read through the banks")
    table.add_column("races", justify="right")
    plain = transposed()
    kernels = (
        ("plain tile", plain),
        ("its barrier removed", without_barrier(plain)),
        ("rows padded to 33", transposed(pad=1)),
        ("rows swizzled", transposed(swizzle="xor")),
    )
    race = ""
    for name, source in kernels:
        report, degree = _run(source)
        races = [hazard for hazard in report.hazards if hazard.kind == "race"]
        bar = "█" * max(1, round(degree * _BAR / _TILE))
        colour = "red" if degree > 1 else "green"
        mark = f"[red]{sum(one.count for one in races)}[/]" if races else "0"
        table.add_row(name, f"{degree - 1:.0f}", f"[{colour}]{bar}[/] {degree:.0f}", mark)
        if races:
            where = [f"{one.line:>4}  {_line(report, one.line)}" for one in races[0].sites]
            race = "\n".join([races[0].message, *where])
    table.caption = escape(f"\nThe race: {race}")
    return table


def _line(report: Report, number: int) -> str:
    """A line of the device function, short enough to be one."""
    text = report.script.splitlines()[number - 1].strip()
    return text if len(text) < _WIDTH - 8 else f"{text[: _WIDTH - 11]}..."


def _run(source: Any) -> tuple[Report, float]:
    """A simulation, and the wavefronts of a request of shared memory, of the worst access."""
    import numpy as np

    from ..simulation import simulate

    a = np.arange(_SIZE * _SIZE, dtype="float32").reshape(_SIZE, _SIZE)
    report = simulate(source, a, grid_sample=_SAMPLE, progress=False)
    output = report.outputs["B"]
    right = bool((output == a.T).all())
    assert right or report.hazards, "a wrong result that no hazard explains"
    shared = [one for one in report.accesses if one.scope == "shared"]
    return report, max(one.wavefronts / one.requests for one in shared)


def _tuned(log: Path) -> Result:
    """Search the same kernel's padding and threads; trial 0 is the plain tile."""
    from .. import te
    from ..tune.search.tune import tune
    from ..tune.space.knobs import knob

    A = te.placeholder((_SIZE, _SIZE), "float32", name="A")
    func = te.create_prim_func(
        [A, te.compute((_SIZE, _SIZE), lambda j, i: A[i, j], name="transpose")]
    )

    def schedule(_: s_tir.Schedule, config: Any) -> s_tir.Schedule:
        return transposed(pad=config["pad"], rows=config["rows"])

    knobs = [knob("pad", (0, 1, 2, 4)), knob("rows", (4, 8, 16), default=8)]
    return tune(func, schedule=schedule, knobs=knobs, trials=8, runner="simulate", log=log)


def _print_tuning(console: Console, result: Result) -> None:
    from ..report.comparison import comparison_table, why
    from ..tune.space.knobs import describe

    assert result.best is not None
    console.print(
        f"\nThe tuner tried {len(result.trials)} paddings and heights of blocks, the plain tile "
        f"first. The best is [green]{describe(result.best.config)}[/].\n{why(result)}\n"
    )
    if (table := comparison_table(result)) is not None:
        console.print(table)


def _page(log: Path, result: Result) -> Path:
    from ..report.page import render_page, workloads
    from ..tune.apply.programs import Programs
    from ..tune.records.files import replace_file

    page = (log / "report.html").resolve()
    shown = workloads(result.trials, programs=Programs(log))
    replace_file(page, render_page(str(log), shown, "").encode())
    return page
