"""``tune``: search an operator's knobs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .app import FAILED, INTERRUPTED, command
from .shared import (
    Arch,
    AsJson,
    Key,
    RunnerName,
    Shape,
    Tracker,
    make_console,
    parse_shape,
    print_command,
    print_json,
    runner_text,
    target_of,
)

if TYPE_CHECKING:
    from ..tune.search.tune import Result


@command()
def tune(
    operator: Annotated[str, typer.Argument(help="An operator of schedules/, e.g. transpose.")],
    shape: Shape = "",
    dtype: Annotated[
        str, typer.Option(help="Element type; by default float32, or the operator's first.")
    ] = "",
    arch: Arch = "",
    trials: Annotated[int, typer.Option(help="Configurations to try, the default included.")] = 64,
    strategy: Annotated[
        str, typer.Option(help="evolutionary: guided by a cost model; replay: drawn at random.")
    ] = "evolutionary",
    runner: RunnerName = "auto",
    tracker: Tracker = "",
    key: Key = "",
    log: Annotated[Path, typer.Option(help="Folder for the records; resumes.")] = Path("tune_logs"),
    seed: Annotated[int, typer.Option(help="Of the search and of the inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Search an operator's knobs; print all trials, and why the winner wins."""
    from ..report.progress import trial_progress
    from ..tune.search.tune import tune as run

    console = Console(stderr=True) if as_json else make_console()
    with trial_progress(console) as show:
        result = run(
            operator,
            target_of(arch),
            shape=parse_shape(shape),
            dtype=dtype or None,
            trials=trials,
            runner=runner_text(runner, tracker, key),
            log=log,
            seed=seed,
            strategy=strategy,
            progress=show,
        )
    if as_json:
        names = "best", "trials", "resumed", "interrupted", "warning"
        print_json({name: getattr(result, name) for name in names})
    else:
        _print_result(console, result, log)
    if result.interrupted:
        raise typer.Exit(INTERRUPTED)
    if result.best is None:
        raise typer.Exit(FAILED)


def _print_result(console: Console, result: Result, log: Path) -> None:
    from ..report.comparison import comparison_table
    from ..report.tuning import failures, phase_line, result_table
    from ..tune.model.cost import FORMULA

    if result.warning:
        typer.echo(f"Warning: {result.warning}", err=True)
    if not result.trials:
        console.print("Interrupted before the first trial ended.")
        return
    console.print(result_table(result))
    legal, refused = result.task.space.legal, result.task.space.refused
    console.print(
        f"\n{len(result.trials)} of {len(legal):,} legal configurations tried, {result.resumed} of "
        f"them from the log; {refused.total():,} combinations were not legal: "
        f"{', '.join(f'{rule} {count:,}' for rule, count in refused.most_common()) or 'none'}.\n"
    )
    if phases := phase_line(result.trials):
        console.print(f"{phases}\n")
    if not result.trials[0].measured:
        console.print(f"{FORMULA}\n")
    for line in [*failures(result), *_verdict(result)]:
        console.print(line)
    comparison = comparison_table(result)
    if comparison is not None:
        console.print("", comparison)
    if result.best is not None:
        console.print("\nReplay the winner:")
        print_command("replay", str(log), "--id", result.best.id)


def _verdict(result: Result) -> list[str]:
    from ..report.comparison import why

    if result.interrupted:
        found = "no trial worked yet" if result.best is None else f"best so far: {result.best.id}"
        return [f"Interrupted; {found}. The same command goes on from the log."]
    checked = []
    if result.best is not None:
        whole = result.best.verified_on == str(result.task.workload)
        part = "" if whole else ", a part of the shape that is as ragged"
        checked = [f"Verified against NumPy on {result.best.verified_on}{part}."]
    return [why(result), *checked, *result.edges()]
