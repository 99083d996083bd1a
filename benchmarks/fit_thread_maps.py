"""Fit the constants of :mod:`tvm_layout_ext.gpu.kernel_time` to what thread_maps measured.

``python3 -m benchmarks.fit_thread_maps FILE`` prints how well the model orders the measured pairs,
the constants as they are and as a random search finds them best, and the pairs that are furthest
off. What it finds is typed into ``tvm_layout_ext/gpu/measured.py`` by hand.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer

from benchmarks.rank_correlation import spearman
from tvm_layout_ext.gpu.kernel_time import KernelWork, kernel_terms, modelled_seconds
from tvm_layout_ext.gpu.measured import H200, GpuSpeeds

__all__ = ["Measured", "forecast", "read_pairs", "within"]

#: Constants that are fitted, each with the range in which it makes sense.
FITTED = {
    "store_cost": (0.5, 5.0),
    "line_cycles": (0.25, 2.0),
    "issue": (0.5, 8.0),
    "combine_cycles": (0.5, 16.0),
    "load_latency": (200.0, 1500.0),
    "block_latency": (300.0, 6000.0),
    "overlap": (1.0, 8.0),
}
#: Programs that differ by less than this from their fastest to their slowest map say nothing.
SPREAD = 1.1


class Measured(NamedTuple):
    """A pair that was measured."""

    program: str
    text: str
    kernels: tuple[KernelWork, ...]
    seconds: float


def read_pairs(path: Path) -> list[Measured]:
    """Pairs of a file that were measured and right."""
    found = []
    for row in json.loads(path.read_text())["pairs"]:
        if row["measured"] is not None and row.get("error") is None:
            kernels = tuple(KernelWork.from_json(kernel) for kernel in row["kernels"])
            text = f"{row['path']} {row['request']}"
            found.append(Measured(row["program"], text, kernels, row["measured"]))
    return found


def forecast(pairs: Sequence[Measured], gpu: GpuSpeeds = H200) -> list[float]:
    """Modelled seconds of each pair."""
    return [modelled_seconds(pair.kernels, gpu) for pair in pairs]


def within(pairs: Sequence[Measured], modelled: Sequence[float]) -> dict[str, float]:
    """Rank correlation among the maps of each program whose times differ."""
    by_program: dict[str, list[tuple[float, float]]] = {}
    for pair, seconds in zip(pairs, modelled, strict=True):
        by_program.setdefault(pair.program, []).append((seconds, pair.seconds))
    found = {}
    for name, both in by_program.items():
        times = [measured for _, measured in both]
        if len(both) >= 4 and max(times) > SPREAD * min(times):
            found[name] = spearman([m for m, _ in both], times) or 0.0
    return found


def lost(pairs: Sequence[Measured], modelled: Sequence[float]) -> dict[str, float]:
    """How much slower the map with the least modelled time is than the fastest, by program."""
    best: dict[str, tuple[float, float]] = {}
    fastest: dict[str, float] = {}
    for pair, seconds in zip(pairs, modelled, strict=True):
        fastest[pair.program] = min(pair.seconds, fastest.get(pair.program, math.inf))
        if seconds < best.get(pair.program, (math.inf, 0.0))[0]:
            best[pair.program] = (seconds, pair.seconds)
    return {name: took / fastest[name] for name, (_, took) in best.items()}


def loss(pairs: Sequence[Measured], gpu: GpuSpeeds) -> float:
    """Mean error of the logarithm, and what choosing by the model loses."""
    modelled = forecast(pairs, gpu)
    off = [abs(math.log(m / p.seconds)) for p, m in zip(pairs, modelled, strict=True)]
    return mean(min(one, 1.5) for one in off) + mean(
        min(one - 1, 1.0) for one in lost(pairs, modelled).values()
    )


def fitted(pairs: Sequence[Measured], rounds: int, seed: int = 0) -> GpuSpeeds:
    """Constants with the least loss that a random walk finds."""
    rng = np.random.default_rng(seed)
    best = H200
    least = loss(pairs, best)
    width = 0.4
    for turn in range(rounds):
        names = rng.choice(list(FITTED), rng.integers(1, 4), replace=False)
        changed: dict[str, float] = {}
        for name in names:
            low, high = FITTED[str(name)]
            value = getattr(best, str(name)) * math.exp(rng.normal(0, width))
            changed[str(name)] = float(min(max(value, low), high))
        tried = replace(best, **changed)
        now = loss(pairs, tried)
        if now < least:
            best, least = tried, now
        width = 0.4 * (1 - turn / rounds) + 0.03
    return best


def report(pairs: Sequence[Measured], gpu: GpuSpeeds) -> Mapping[str, Any]:
    """What tells how good the constants are."""
    modelled = forecast(pairs, gpu)
    inside = within(pairs, modelled)
    slower = lost(pairs, modelled)
    ratios = [m / p.seconds for p, m in zip(pairs, modelled, strict=True)]
    return {
        "pairs": len(pairs),
        "spearman": spearman(modelled, [p.seconds for p in pairs]),
        "within, median": median(inside.values()),
        "within, mean": mean(inside.values()),
        "loss": loss(pairs, gpu),
        "ratio, median": median(ratios),
        "off, median": median(abs(math.log(r)) for r in ratios),
        "slower than the fastest, mean": mean(slower.values()),
        "worst orders": sorted(inside.items(), key=lambda one: one[1])[:8],
        "worst choices": sorted(slower.items(), key=lambda one: -one[1])[:8],
    }


def main(
    file: Path,
    rounds: Annotated[int, typer.Option(help="Steps of the search; 0 only reports.")] = 3000,
    worst: Annotated[int, typer.Option(help="Pairs to list.")] = 25,
) -> None:
    """Report how well the model orders what was measured, fit it, and report again."""
    pairs = read_pairs(file)
    gpu = H200
    for turn in range(2 if rounds else 1):
        if turn:
            gpu = fitted(pairs, rounds)
            print({name: float(f"{getattr(gpu, name):.4g}") for name in FITTED})
        for name, value in report(pairs, gpu).items():
            print(f"{name}: {value}")
    modelled = forecast(pairs, gpu)
    order = sorted(range(len(pairs)), key=lambda n: -abs(math.log(modelled[n] / pairs[n].seconds)))
    for n in order[:worst]:
        pair = pairs[n]
        heaviest = max(pair.kernels, key=lambda work: work.total("requests"))
        terms = {k: round(v * 1e6, 1) for k, v in kernel_terms(heaviest, gpu).items()}
        shape = [(work.blocks, work.threads, work.resident) for work in pair.kernels]
        print(
            f"{pair.program} {pair.text} {shape}: modelled {modelled[n] * 1e6:.1f}, "
            f"measured {pair.seconds * 1e6:.1f} us, {terms}"
        )


if __name__ == "__main__":
    typer.run(main)
