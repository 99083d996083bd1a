"""The command line: ``python -m tvm_layout_ext tune | best | replay | explain | layout``.

Exit codes: 0 done; 1 no candidate worked, or a replayed one gave a wrong result; 2 the input
cannot be used; 130 interrupted by Ctrl-C.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand

from .errors import LayoutError, LayoutExtError, RecordError, ScheduleError

if TYPE_CHECKING:
    from .tune.records import Reading, Record
    from .tune.search import Result

__all__ = ["app", "main"]

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130
_EPILOG = (
    "Exit codes: 0 done; 1 no candidate worked, or a result was wrong; "
    "2 the input cannot be used; 130 interrupted."
)
#: Wide enough for a trial table when there is no terminal to ask.
_FILE_WIDTH = 170


class _Command(TyperCommand):
    """Takes ``--shape 64 32``, and says what is wrong with its input in one sentence."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _join_shapes(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except LayoutExtError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(BAD_INPUT) from None


def _join_shapes(args: list[str]) -> list[str]:
    """Make one word of the numbers after ``--shape``: typer's options take one."""
    joined: list[str] = []
    for arg in args:
        number = re.fullmatch(r"[-+]?[\d.]+", arg) is not None
        if number and joined and joined[-1].startswith("--shape="):
            joined[-1] += f" {arg}"
        elif joined and joined[-1] == "--shape" and not arg.startswith("--"):
            joined[-1] = f"--shape={arg}"
        else:
            joined.append(arg)
    return joined


app = typer.Typer(
    help="Memory layout for Apache TVM schedules: tune, replay and explain kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Log = Annotated[Path, typer.Argument(help="Folder of a log, or one of its *.jsonl files.")]
Shape = Annotated[
    str, typer.Option(help="The operator's sizes: 1024 1024, 1024x1024 or 1024,1024.")
]
RunnerName = Annotated[
    str,
    typer.Option(help="cuda measures; simulate ranks by a model; auto measures if it can."),
]


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def _shape(text: str) -> tuple[int, ...]:
    words = [word for word in re.split(r"[x,\s]+", text.strip()) if word]
    try:
        return tuple(map(int, words))
    except ValueError:
        raise ScheduleError(
            f"A shape is made of whole numbers, e.g. 1024 1024, not {text!r}."
        ) from None


def _warn(reading: Reading) -> None:
    if reading.warning:
        typer.echo(f"Warning: {reading.warning}", err=True)


@app.command(cls=_Command, epilog=_EPILOG)
def tune(
    operator: Annotated[str, typer.Argument(help="An operator of schedules/, e.g. transpose.")],
    shape: Shape = "",
    dtype: Annotated[str, typer.Option(help="Element type.")] = "float32",
    trials: Annotated[int, typer.Option(help="Configurations to try, the default included.")] = 64,
    runner: RunnerName = "auto",
    log: Annotated[Path, typer.Option(help="Folder for the records; resumes.")] = Path("tune_logs"),
    seed: Annotated[int, typer.Option(help="Of the order of trials and of the inputs.")] = 0,
) -> None:
    """Search an operator's knobs; print all trials, and why the winner wins."""
    from .report.progress import trial_progress
    from .tune.search import tune as run

    console = _console()
    with trial_progress(console) as show:
        result = run(
            operator,
            shape=_shape(shape),
            dtype=dtype,
            trials=trials,
            runner=runner,
            log=log,
            seed=seed,
            progress=show,
        )
    _print_result(console, result, log)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.best is None:
        raise typer.Exit(FAILED)


def _print_result(console: Console, result: Result, log: Path) -> None:
    from .report.comparison import comparison_table
    from .report.tuning import failures, trial_table
    from .tune.cost import FORMULA

    if result.warning:
        typer.echo(f"Warning: {result.warning}", err=True)
    if not result.trials:
        console.print("Interrupted before the first trial ended.")
        return
    console.print(trial_table(result))
    legal, refused = result.task.space.legal, result.task.space.refused
    console.print(
        f"\n{len(result.trials)} of {len(legal):,} legal configurations tried, {result.resumed} of "
        f"them from the log; {refused.total():,} combinations were not legal: "
        f"{', '.join(f'{rule} {count:,}' for rule, count in refused.most_common()) or 'none'}.\n"
    )
    if result.trials[0].runner == "simulate":
        console.print(f"{FORMULA}\n")
    for line in [*failures(result), *_verdict(result)]:
        console.print(line)
    comparison = comparison_table(result)
    if comparison is not None:
        console.print("", comparison)
    if result.best is not None:
        console.print("\nReplay the winner:")
        _print_command("replay", str(log), "--id", result.best.id)


def _verdict(result: Result) -> list[str]:
    from .report.comparison import why

    if result.interrupted:
        found = "no trial worked yet" if result.best is None else f"best so far: {result.best.id}"
        return [f"Interrupted; {found}. The same command goes on from the log."]
    checked = []
    if result.best is not None:
        whole = result.best.verified_on == str(result.task.workload)
        part = "" if whole else ", a part of the shape that is as ragged"
        checked = [f"Verified against NumPy on {result.best.verified_on}{part}."]
    return [why(result), *checked, *result.edges()]


def _print_command(*words: str) -> None:
    """Print a command on one line whatever the width, so that it can be copied."""
    typer.echo(shlex.join(["python", "-m", "tvm_layout_ext", *words]))


@app.command(cls=_Command, epilog=_EPILOG)
def best(
    log: Log,
    explain: Annotated[bool, typer.Option("--explain", help="Explain each kernel too.")] = False,
) -> None:
    """Print the best record of each workload."""
    from .report.tuning import best_table
    from .tune.replay import best_records

    records = best_records(_read(log))
    if not records:
        typer.echo(f"No trial in {log} worked.", err=True)
        raise typer.Exit(FAILED)
    _console().print(best_table(records))
    for record in records:
        typer.echo("")
        _print_command("replay", str(log), "--id", record.id)
        if explain:
            _explain_record(record)


def _read(log: Path) -> list[Record]:
    from .tune.records import Log as Records

    reading = Records(log).read()
    _warn(reading)
    return reading.records


def _explain_record(record: Record) -> None:
    from .report.winner import explain_record

    typer.echo(f"\n{record.workload}, {record.id}:\n{explain_record(record)}")


@app.command(cls=_Command, epilog=_EPILOG)
def replay(
    log: Log,
    record_id: Annotated[
        str, typer.Option("--id", help="Start of a record's id; by default each workload's best.")
    ] = "",
    runner: RunnerName = "auto",
) -> None:
    """Run recorded configurations again, verify them, and compare with the record."""
    from .tune.replay import best_records, find_record

    records = _read(log)
    chosen = [find_record(records, record_id)] if record_id else best_records(records)
    if not chosen:
        raise RecordError(f"No trial in {log} worked, so there is none to replay.")
    failed = [record for record in chosen if not _replay_one(record, runner)]
    if failed:
        raise typer.Exit(FAILED)


def _replay_one(record: Record, runner: str) -> bool:
    """Replay a record and print what it gave; whether it is right."""
    from .report.tuning import replay_lines
    from .tune.replay import replay as run
    from .tune.verify import WrongResultError

    typer.echo(f"{record.id}  {record.workload} on {record.device} ({record.arch})")
    try:
        again = run(record, runner)
    except WrongResultError as error:
        typer.echo(f"  wrong: {error}", err=True)
        return False
    for line in replay_lines(again):
        typer.echo(f"  {line}")
    return True


@app.command(cls=_Command, epilog=_EPILOG)
def explain(
    file: Annotated[Path, typer.Argument(help="Python file with a schedule, or TVMScript text.")],
    name: Annotated[
        str, typer.Option(help="Which variable of the file, if there are several.")
    ] = "",
    size: Annotated[
        list[str] | None, typer.Option(help="Value of a symbolic size: --size n=256. Repeatable.")
    ] = None,
    blocks: Annotated[int, typer.Option(help="Blocks to run for the counters; 0 runs all.")] = 4,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Chart the pipelined loops instead.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write that chart to this .svg file, too.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw lanes by bank into this .svg file.")
    ] = None,
) -> None:
    """Table every global and shared access of a kernel: width, sectors, conflicts, banks."""
    from .report.banks import bank_picture
    from .report.explain import explain as run
    from .report.load import load_file

    values = _sizes(size or [])
    source, args = load_file(file, name or None)
    if pipeline:
        _chart(source, args, out)
        return
    if out is not None:
        raise ScheduleError("Only the chart of --pipeline is written to a file.")
    if picture is not None and picture.suffix != ".svg":
        raise LayoutError(f"A picture of banks is written to a .svg file, not to {picture}.")
    explained = run(source, args, values=values, grid_sample=blocks or None)
    typer.echo(explained)
    if picture is not None:
        _write(picture, bank_picture(explained.banks))


def _chart(source: Any, args: Any, out: Path | None) -> None:
    """Print the chart of a program's pipelines; draw it if there is a file."""
    from .report.pipeline_chart import explain_pipeline

    if out is not None and out.suffix != ".svg":
        raise ScheduleError(f"A chart is written to a .svg file, not to {out}.")
    found = explain_pipeline(source, args)
    typer.echo(found)
    if out is not None:
        _write(out, found.svg())


def _write(out: Path, text: str) -> None:
    try:
        out.write_text(text)
    except OSError as error:
        raise LayoutError(f"Cannot write {out}: {error.strerror}.") from None
    typer.echo(f"Wrote {out}.")


def _sizes(words: list[str]) -> dict[str, int]:
    pairs = [re.fullmatch(r"(\w+)=(\d+)", word) for word in words]
    wrong = [word for word, pair in zip(words, pairs, strict=True) if pair is None]
    if wrong:
        raise ScheduleError(f"A size is written name=number, e.g. n=256, not {wrong[0]!r}.")
    return {pair[1]: int(pair[2]) for pair in pairs if pair is not None}


@app.command(cls=_Command, epilog=_EPILOG)
def layout(
    text: Annotated[str, typer.Argument(help="A layout's text, e.g. 'BlockedLayout(...)'.")],
    shape: Shape = "",
    view: Annotated[
        str, typer.Option(help="tensor: who holds each element; hardware: what each holds; bank.")
    ] = "tensor",
    bits: Annotated[int, typer.Option(help="Bits of an element, for the bank view.")] = 32,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write a .svg or .html picture here.")
    ] = None,
) -> None:
    """Draw where a layout puts the elements of a tensor."""
    from .layout import Layout, parse

    parsed = parse(text)
    if not isinstance(parsed, Layout):
        raise LayoutError(
            "A LinearLayout alone does not say what its dims mean; write DistributedLinear(...)."
        )
    kind = "text" if out is None else out.suffix.removeprefix(".")
    if kind not in ("text", "svg", "html"):
        raise LayoutError(f"A picture is written to a .svg or .html file, not to {out}.")
    element_bits = bits if view == "bank" else None
    drawn = parsed.render(_shape(shape), kind=kind, view=view, element_bits=element_bits)
    if out is None:
        typer.echo(drawn)
        return
    _write(out, drawn)


def main() -> None:
    """Run the command line; the console script ``tvm-layout``."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
