"""How fast a search comes near the best of a sweep, and how well the models rank it; needs no GPU.

``python -m benchmarks.search_quality run SWEEP... --out FILE`` replays searches on committed sweeps
(:mod:`.sweep`): guided by the cost model, and drawn at random, several seeds
each. After each trial it notes which share of the sweep's best speed the best so far has.
``draw FILE --out PNG`` makes the figure, and ``rank SWEEP`` tells how well both models order it.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.rank_correlation import correlations, ranks, spearman, task_of
from benchmarks.sweep_file import Sweep, SweepEntry, SweepRunner
from tvm_layout_ext.tune.search.tune import tune

__all__ = ["curve", "ranks", "spearman", "task_of"]

TRIALS, SEEDS = 64, 5
#: Trials after which the share is printed.
SHOWN = (8, 16, 32, 64)
#: Ends the names of curves that leave the default out.
ALONE = "_without_default"


def curve(seconds: Sequence[float | None], best: float) -> list[float]:
    """Share of the best speed that the best so far has, after each trial; 0 before any worked.

    >>> curve([None, 2.0, 4.0, 1.0], 1.0)
    [0.0, 0.5, 0.5, 1.0]
    """
    shares, so_far = [], 0.0
    for one in seconds:
        so_far = max(so_far, best / one if one else 0.0)
        shares.append(so_far)
    return shares


def guided(sweep: Sweep, seed: int, trials: int) -> list[float | None]:
    """Seconds of the trials of the search that ``tune`` makes, the default first."""
    workload = sweep.header.workload
    result = tune(
        sweep.operator,
        shape=workload.shape,
        dtype=workload.dtype,
        trials=trials,
        runner=SweepRunner(sweep),
        seed=seed,
    )
    return [record.median for record in result.trials]


def drawn(sweep: Sweep, seed: int, trials: int) -> list[float | None]:
    """Seconds of candidates drawn at random without repeats, the default first."""
    default = task_of(sweep).space.default()
    rest = [entry for entry in sweep.entries if entry.config != default]
    first = [entry for entry in sweep.entries if entry.config == default]
    random.Random(seed).shuffle(rest)
    return [entry.seconds for entry in [*first, *rest][:trials]]


def _seconds(entries: Sequence[SweepEntry]) -> list[float]:
    return [entry.seconds or 0.0 for entry in entries]


def curves(path: Path, seeds: int, trials: int, processes: int) -> dict[str, list[list[float]]]:
    """Curves of both searches, one a seed; the guided ones in processes of their own."""
    jobs = [(path, seed, trials) for seed in range(seeds)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        found = {"guided": pool.starmap(_guided, jobs, chunksize=1)}
    sweep = Sweep.read(path)
    found["random"] = [drawn(sweep, seed, trials) for seed in range(seeds)]
    best = sweep.best.seconds or 0.0
    return {
        f"{name}{ALONE if alone else ''}": [
            curve([None, *run[1:]] if alone else run, best) for run in runs
        ]
        for alone in (False, True)
        for name, runs in found.items()
    }


def _guided(path: Path, seed: int, trials: int) -> list[float | None]:
    return guided(Sweep.read(path), seed, trials)


def studied(
    path: Path, seeds: int, trials: int, processes: int, modelled: int, simulated: int
) -> dict[str, Any]:
    """Everything about one sweep that is written."""
    sweep = Sweep.read(path)
    worked = _seconds([e for e in sweep.entries if e.seconds is not None])
    best = min(worked)
    return {
        "sweep": path.name,
        "workload": str(sweep.header.workload),
        "device": sweep.header.device,
        "legal": sweep.header.legal,
        "measured": len(worked),
        "failed": len(sweep.entries) - len(worked),
        "best_seconds": best,
        "best_config": sweep.best.config,
        "within_5_percent": sum(one <= best / 0.95 for one in worked),
        "median_seconds": statistics.median(worked),
        **curves(path, seeds, trials, processes),
        "correlation": correlations(path, modelled, simulated, processes),
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Median share of the best over the seeds, after some trials; of the last, all seeds."""
    lines = [f"{'search':26}" + "".join(f"{n:>8}" for n in SHOWN) + "  each seed"]
    for result in results:
        lines.append(f"{result['workload']}: {result['measured']} candidates")
        for name in (f"{one}{ending}" for ending in (ALONE, "") for one in ("guided", "random")):
            runs = result[name]
            cells = [statistics.median(run[min(n, len(run)) - 1] for run in runs) for n in SHOWN]
            each = " ".join(f"{run[-1]:.3f}" for run in runs)
            lines.append(f"{name:26}" + "".join(f"{cell:8.3f}" for cell in cells) + f"  {each}")
        models = {name: one["spearman"] for name, one in result["correlation"].items()}
        lines.append(f"Spearman's correlation with the measured: {models}")
    return "\n".join(lines)


app = typer.Typer(add_completion=False)


@app.command("run")
def run_command(
    sweeps: list[Path],
    out: Annotated[Path, typer.Option(help="Write the curves here, as JSON.")],
    seeds: int = SEEDS,
    trials: int = TRIALS,
    processes: int = 1,
    modelled: int = 300,
    simulated: int = 48,
) -> None:
    """Replay searches on sweeps; what the file holds of other sweeps stays."""
    held = json.loads(out.read_text()) if out.exists() else {"sweeps": []}
    results = {one["sweep"]: one for one in held["sweeps"] if held["trials"] == trials}
    for path in sweeps:
        found = studied(path, seeds, trials, processes, modelled, simulated)
        results[path.name] = found
        written = {"trials": trials, "sweeps": [results[name] for name in sorted(results)]}
        out.write_text(json.dumps(written, indent=1) + "\n")
    print(table(list(results.values())))


@app.command("rank")
def rank_command(sweep: Path, modelled: int = 300, simulated: int = 48, processes: int = 1) -> None:
    """Print Spearman's correlation of both models with a sweep's measured medians."""
    header = Sweep.read(sweep).header
    found = correlations(sweep, modelled, simulated, processes)
    print(f"{header.workload}, medians of {header.device}: Spearman's correlation with")
    for name, key in (("the simulator's cost", "simulator"), ("the closed form", "latency")):
        one = found[key]
        print(f"  {name}: {one['spearman']} ({one['candidates']} random candidates)")


@app.command("draw")
def draw_command(
    source: Path, out: Annotated[Path, typer.Option(help="A PNG or SVG file.")]
) -> None:
    """Draw the curves without the default: the median of the seeds, their range as a shade."""
    from matplotlib.figure import Figure

    results = json.loads(source.read_text())["sweeps"]
    figure = Figure(figsize=(4.2 * len(results), 3.4), layout="constrained")
    axes = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for plot, result in zip(axes, results, strict=True):
        for name, colour in (("guided", "tab:blue"), ("random", "tab:gray")):
            length = min(map(len, result[name + ALONE]))
            runs = np.array([run[:length] for run in result[name + ALONE]])
            steps = np.arange(1, length + 1)
            plot.fill_between(steps, runs.min(0), runs.max(0), color=colour, alpha=0.2, lw=0)
            plot.plot(steps, np.median(runs, 0), color=colour, label=name)
        plot.axhline(result["guided"][0][0], color="tab:green", lw=0.8, label="default")
        plot.axhline(0.95, color="black", lw=0.6, ls=":")
        plot.set_title(f"{result['workload']}\n{result['measured']} candidates", fontsize=9)
        plot.set_xlabel("trials")
    axes[0].set_ylabel("share of the sweep's best speed")
    axes[0].set_ylim(0.6, 1.02)
    axes[0].legend(loc="lower right")
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    app()
