"""What the commands share: arguments, the console, reading logs, writing files."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ..errors import LayoutError, RecordError, ScheduleError, TargetError

if TYPE_CHECKING:
    from tvm.target import Target

    from ..tune.records.log import Reading, Record
    from ..tune.space.operator import Operator

#: Wide enough for a trial table when there is no terminal to ask.
_FILE_WIDTH = 170

#: The largest size: TVM indexes by 32 bits.
_LARGEST = 2**31 - 1

Log = Annotated[Path, typer.Argument(help="Folder of a log, or one of its *.jsonl files.")]
Shape = Annotated[
    str, typer.Option(help="The operator's sizes: 1024 1024, 1024x1024 or 1024,1024.")
]
Source = Annotated[Path, typer.Argument(help="Python file with a schedule, or TVMScript text.")]
Variable = Annotated[
    str, typer.Option("--name", help="Which variable of the file, if there are several.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", help="Value of a symbolic size: --size n=256. Repeatable."),
]
Arch = Annotated[
    str,
    typer.Option(help="Architecture to lower for, e.g. sm_90a; by default this machine's GPU."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, for other programs.")]
RunnerName = Annotated[
    str,
    typer.Option(
        help="cuda measures here, rpc on the servers of a tracker; simulate ranks by a model; "
        "auto measures here if it can."
    ),
]
Tracker = Annotated[str, typer.Option(help="HOST:PORT of the RPC tracker, for --runner rpc.")]
Key = Annotated[str, typer.Option(help="Key of the servers to use, for --runner rpc.")]


def make_console() -> Console:
    """A console as wide as the terminal, or as a trial table."""
    console = Console()
    return console if console.is_terminal else Console(width=_FILE_WIDTH)


def parse_shape(text: str) -> tuple[int, ...]:
    """Read ``1024 1024``, ``1024x1024`` or ``1024,1024``."""
    words = [word for word in re.split(r"[x,\s]+", text.strip()) if word]
    try:
        shape = tuple(map(int, words))
    except ValueError:
        raise ScheduleError(
            f"A shape is made of whole numbers, e.g. 1024 1024, not {text!r}."
        ) from None
    if max(shape, default=0) > _LARGEST:
        raise ScheduleError(f"A size is at most {_LARGEST:,}, not {max(shape)}.")
    return shape


def parse_sizes(words: list[str] | None) -> dict[str, int]:
    """Read words like ``n=256``; anything else is a ScheduleError."""
    sizes = {}
    for word in words or []:
        pair = re.fullmatch(r"(\w+)=(\d+)", word)
        if pair is None:
            raise ScheduleError(f"A size is written name=number, e.g. n=256, not {word!r}.")
        if not 1 <= int(pair[2]) <= _LARGEST:
            raise ScheduleError(f"A size is 1 to {_LARGEST:,}, not {pair[2]}.")
        sizes[pair[1]] = int(pair[2])
    return sizes


def target_of(arch: str) -> Target | None:
    """The target of an architecture; None, the default, if none is named."""
    from ..target import cuda_target

    return cuda_target(arch) if arch else None


def print_json(value: Any) -> None:
    """Write a value as JSON: what has ``to_json`` as that, a dataclass by its fields."""
    typer.echo(json.dumps(value, indent=2, default=_plain))


def _plain(value: Any) -> Any:
    """What JSON has no word for, in words that it has."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return str(value)


def runner_text(runner: str, tracker: str, key: str) -> str:
    """A runner as the tuner takes it: ``rpc:HOST:PORT:KEY`` with a tracker, else its name."""
    if runner != "rpc":
        if tracker or key:
            raise TargetError(f"--tracker and --key go with --runner rpc, not with {runner}.")
        return runner
    host, _, port = tracker.rpartition(":")
    if not host or not port.isdigit():
        raise TargetError(f"--runner rpc needs --tracker HOST:PORT, not {tracker or 'none'!r}.")
    if not key or ":" in key:
        raise TargetError(
            f"--runner rpc needs --key, a name without colons, not {key or 'none'!r}."
        )
    return f"rpc:{host}:{port}:{key}"


def read_log(log: Path) -> Reading[Record]:
    """Read a log's records; a warning counts what was skipped."""
    from ..tune.records.log import Log as Records

    reading = Records(log).read()
    if reading.warning:
        typer.echo(f"Warning: {reading.warning}", err=True)
    return reading


def some_records(log: Path) -> Reading[Record]:
    """Read a log that holds a record; a warning counts what was skipped."""
    reading = read_log(log)
    if not reading.records:
        raise RecordError(f"The log {log} holds no record.")
    return reading


def winners_of(log: Path, purpose: str) -> tuple[list[tuple[Record, Operator]], int]:
    """The best record of each workload, with what makes its program again, for a purpose.

    Those of which there is no program are left out, with a warning why, and counted.
    """
    from ..tune.apply.programs import Programs
    from ..tune.apply.replay import best_records

    winners = best_records(read_log(log).records)
    if not winners:
        raise RecordError(f"No trial in {log} worked, so there is no winner {purpose}.")
    programs = Programs(log)
    found: list[tuple[Record, Operator]] = []
    missing: list[str] = []
    for record in winners:
        try:
            found.append((record, programs.operator(record)))
        except RecordError as error:
            missing.append(str(error))
    if not found:
        raise RecordError(" ".join(missing))
    for text in missing:
        typer.echo(f"Warning: {text}", err=True)
    return found, len(missing)


def print_command(*words: str) -> None:
    """Print a command on one line whatever the width, so that it can be copied."""
    typer.echo(shlex.join(["python", "-m", "tvm_layout_ext", *words]))


def write_text(out: Path, text: str, *, err: bool = False) -> None:
    """Write a file at once and say so; where it cannot be, what was there stays.

    It is said on stderr if ``err``, where stdout is for JSON alone.
    """
    from ..tune.records.files import replace_file

    content, was_there = text.encode(), False
    try:
        was_there = out.is_file()
        if out.exists() and not was_there:
            # Such as /dev/stdout, which nothing may take the place of.
            out.write_bytes(content)
        else:
            replace_file(out.resolve(), content)
    except OSError as error:
        kept = "; it is as it was" if was_there else ""
        raise LayoutError(f"Cannot write {out}: {error.strerror}{kept}.") from None
    typer.echo(f"Wrote {out}.", err=err)
