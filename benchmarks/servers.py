"""How much faster one run of the tuner measures with two GPUs behind a tracker than with one.

``python -m benchmarks.servers --out FILE`` on a machine with two GPUs ends within about ``--limit``
seconds. The candidates are built first; then the same libraries are measured through the tracker by
one server and by two, in turns, each of them several times. A second figure is that of whole runs
of ``tune``: scheduling, building, measuring and verifying. Both sides search from the same seeds,
in turns, and each run tells how much of the search its GPUs were at work: where that is little,
cores to build with are what a run lacks, and a second GPU cannot make it faster.
``--target llvm`` goes the same way on any machine with libraries for its CPU, without whole runs,
as ``tune`` makes CUDA kernels.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import tvm
from tvm.rpc.tracker import Tracker as TrackerProcess

from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.measure.builder.builder import CubinBuilder
from tvm_layout_ext.tune.measure.protocol import Measured
from tvm_layout_ext.tune.measure.rpc.run import RpcRunner
from tvm_layout_ext.tune.measure.rpc.tracker import Tracker
from tvm_layout_ext.tune.space.candidate import traced
from tvm_layout_ext.tune.space.task import Task, make_task

HOST = "127.0.0.1"
#: Servers by key, each by the number of its GPU.
KEYS = {"one": (0,), "two": (0, 1)}
START_SECONDS = 60
PHASES = ("wait", "session", "upload", "run")
SHAPES = {"cuda": (2048, 2048, 2048), "llvm": (128, 128, 128)}


class Farm:
    """A tracker on this machine, and servers that each see one GPU."""

    def __init__(self) -> None:
        self.tracker_process = TrackerProcess(HOST, 9390, 9590, silent=True)
        self.port = int(self.tracker_process.port)
        self.servers = [self._start(key, gpu) for key, gpus in KEYS.items() for gpu in gpus]

    def _start(self, key: str, gpu: int) -> subprocess.Popen[bytes]:
        options = ["--tracker", f"{HOST}:{self.port}", "--key", key, "--host", HOST]
        command = [sys.executable, "-m", "tvm_layout_ext.tune.measure.rpc.server", *options]
        seen = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
        return subprocess.Popen(command, env=seen, start_new_session=True)

    def wait(self) -> None:
        """Wait until the tracker knows all servers."""
        end = time.monotonic() + START_SECONDS
        for key, gpus in KEYS.items():
            while len(Tracker(HOST, self.port, key).servers()) < len(gpus):
                if time.monotonic() > end:
                    raise RuntimeError(f"The servers did not start within {START_SECONDS} s.")
                time.sleep(0.2)

    def close(self) -> None:
        """End the servers and the tracker."""
        for server in self.servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        self.tracker_process.terminate()


class Side:
    """The servers of one key, and what they measured.

    Parameters
    ----------
    task : Task
    port : int
        The tracker's.
    key : str
    """

    def __init__(self, task: Task, port: int, key: str) -> None:
        self.key = key
        self.runner = RpcRunner(task, HOST, port, key)
        self.seconds: list[float] = []
        self.rows: list[Measured] = []

    def measure(self, artifacts: Sequence[str], kind: str) -> list[Measured]:
        """Measure all libraries, built for a kind of target."""
        self.runner.kind = "cpu" if kind == "llvm" else kind
        return [future.result() for future in self.runner.begin(artifacts)]

    def round(self, artifacts: Sequence[str], kind: str) -> None:
        """Measure all libraries, and keep the time and what each trial says."""
        start = time.perf_counter()
        self.rows += self.measure(artifacts, kind)
        self.seconds.append(time.perf_counter() - start)

    def summary(self) -> dict[str, Any]:
        """Trials a minute, the median of the rounds, and where the seconds of a trial went."""
        each = len(self.rows) // len(self.seconds)
        worked = [row for row in self.rows if not row.error]
        return {
            "servers": len(KEYS[self.key]),
            "at_work": len({row.server for row in worked}),
            "per_minute": 60 * each / median(self.seconds),
            "round_seconds": self.seconds,
            "failed": len(self.rows) - len(worked),
            "reasons": sorted({row.error for row in self.rows if row.error}),
            "phases": {
                name: median(row.phases.get(name, 0.0) for row in worked or self.rows)
                for name in PHASES
            },
        }


def build(task: Task, target: str, count: int) -> tuple[CubinBuilder, list[str], float]:
    """Build the first candidates of the seeded order; also the seconds that it took."""
    builder = CubinBuilder(task.architecture.name)
    start = time.perf_counter()
    if target == "llvm":
        built = builder.begin([task.unscheduled] * count, tvm.target.Target("llvm"))
    else:
        configs = [config for config, _ in zip(task.space.sample(0), range(count), strict=False)]
        built = builder.begin([traced(task, config).mod for config in configs])
    for one in built:
        if error := one.error.result():
            print(f"not built: {error.splitlines()[0]}", flush=True)
    seconds = time.perf_counter() - start
    return builder, [one.folder for one in built if not one.error.result()], seconds


def whole_run(task: Task, port: int, key: str, trials: int, seed: int) -> dict[str, Any]:
    """Trials a minute of a run of ``tune``, and where its seconds went.

    ``first_seconds`` are those until trial 0 was written down, ``search_seconds`` those from there
    to the last trial; what is left are the finalists in turns and the verification. ``at_work`` is
    the share of the search in which a GPU ran a trial.
    """
    told: list[float] = []
    start = time.perf_counter()
    result = tune(
        task.operator,
        shape=task.shape,
        dtype=task.dtype,
        trials=trials,
        runner=f"rpc:{HOST}:{port}:{key}",
        seed=seed,
        progress=lambda *_: told.append(time.perf_counter()),
    )
    seconds = time.perf_counter() - start
    searching, servers = told[-1] - told[0], len(KEYS[key])
    phases = [one.phases or {} for one in result.trials]
    busy = sum(one.get("run", 0.0) for one in phases[1:])
    return {
        "servers": servers,
        "seed": seed,
        "trials": len(result.trials),
        "failed": sum(one.score is None for one in result.trials),
        "seconds": seconds,
        "first_seconds": told[0] - start,
        "search_seconds": searching,
        "build_core_seconds": sum(one.get("build", 0.0) for one in phases),
        "at_work": busy / servers / searching if searching else None,
        "per_minute": 60 * len(result.trials) / seconds,
    }


def rates(
    sides: Sequence[Side], artifacts: Sequence[str], kind: str, rounds: int, until: float
) -> list[dict[str, Any]]:
    """Let both sides measure in turns, at most until a moment; a summary of each."""
    for side in sides:
        # Starts the client processes, opens the sessions and draws the inputs.
        side.measure(artifacts[: 2 * len(KEYS[side.key])], kind)
    for index in range(rounds):
        start = time.perf_counter()
        for side in sides:
            side.round(artifacts, kind)
        took = time.perf_counter() - start
        if index + 1 < rounds and time.perf_counter() + took > until:
            print(f"{index + 1} of {rounds} rounds: there is no time for another", flush=True)
            break
    for side in sides:
        side.runner.close()
    return [side.summary() for side in sides]


def whole_runs(
    task: Task, port: int, trials: int, rounds: int, until: float
) -> list[dict[str, Any]]:
    """Whole runs with one server and with two from the same seeds, in turns, while there is time.

    Every other round begins with two: what a first run finds cold is cold for both sides.
    """
    rows: list[dict[str, Any]] = []
    for seed in range(rounds):
        longest = max((row["seconds"] for row in rows), default=0.0)
        if time.perf_counter() + 2 * longest > until:
            print(f"{seed} of {rounds} rounds of whole runs: there is no time for another")
            break
        order = list(KEYS) if seed % 2 == 0 else list(KEYS)[::-1]
        rows += [whole_run(task, port, key, trials, seed) for key in order]
    return rows


def whole_ratio(rows: Sequence[dict[str, Any]]) -> float | None:
    """Trials a minute of two servers over those of one: the median over the seeds."""
    rates = {(row["seed"], row["servers"]): float(row["per_minute"]) for row in rows}
    seeds = {seed for seed, _ in rates}
    return median(rates[seed, 2] / rates[seed, 1] for seed in seeds) if seeds else None


def report(rows: Sequence[dict[str, Any]], whole: Sequence[dict[str, Any]]) -> None:
    """Print trials a minute, where a trial's time goes, and the ratios."""
    for row in rows:
        phases = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in row["phases"].items())
        print(
            f"{row['servers']} server(s), prebuilt: {row['per_minute']:.0f} trials a minute, "
            f"{row['failed']} failed; of a trial, by median: {phases}"
        )
        for reason in row["reasons"]:
            print(f"  failed: {reason}")
    print(f"prebuilt: two servers measure {ratio(rows):.2f} times the trials a minute of one")
    for row in whole:
        at_work = "" if row["at_work"] is None else f", GPUs at work {row['at_work']:.0%} of that"
        print(
            f"{row['servers']} server(s), whole run from seed {row['seed']}: "
            f"{row['per_minute']:.1f} trials a minute ({row['trials']} in {row['seconds']:.1f} s, "
            f"{row['failed']} failed); {row['first_seconds']:.1f} s to the first trial, "
            f"{row['search_seconds']:.1f} s to the last{at_work}; "
            f"{row['build_core_seconds']:.0f} s of a core to build"
        )
    if (found := whole_ratio(whole)) is not None:
        print(f"whole runs: two servers do {found:.2f} times the trials a minute of one")


def ratio(rows: Sequence[dict[str, Any]]) -> float:
    """Trials a minute of two servers over those of one."""
    return float(rows[1]["per_minute"] / rows[0]["per_minute"])


def arguments() -> argparse.Namespace:
    """The command line's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=tuple(SHAPES), default="cuda")
    parser.add_argument("--operator", default="gemm")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--shape", type=int, nargs="+", help="of the operator")
    parser.add_argument("--trials", type=int, default=40, help="prebuilt candidates")
    parser.add_argument("--rounds", type=int, default=2, help="times that each side measures all")
    parser.add_argument("--whole", type=int, default=32, help="trials of a whole run; 0: none")
    parser.add_argument("--whole-rounds", type=int, default=2, help="seeds of whole runs")
    parser.add_argument("--limit", type=float, default=400.0, help="seconds, for all of it")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    """Measure, print and write the figures."""
    began = time.perf_counter()
    given = arguments()
    task = make_task(given.operator, given.shape or SHAPES[given.target], given.dtype)
    farm, builder = Farm(), None
    try:
        builder, artifacts, building = build(task, given.target, given.trials)
        farm.wait()
        print(f"{len(artifacts)} built in {building:.1f} s", flush=True)
        sides = [Side(task, farm.port, key) for key in KEYS]
        # Whole runs get most of the time.
        share = 0.25 if given.whole and given.target == "cuda" else 1.0
        until = began + share * given.limit
        rows = rates(sides, artifacts, given.target, given.rounds, until)
        whole: list[dict[str, Any]] = []
        if given.whole and given.target == "cuda":
            until = began + given.limit
            whole = whole_runs(task, farm.port, given.whole, given.whole_rounds, until)
    finally:
        farm.close()
        if builder is not None:
            builder.close()
    report(rows, whole)
    data = {
        "device": environment.cuda_device() if given.target == "cuda" else "cpu",
        "versions": environment.versions(),
        "cores": environment.cores(),
        "git": environment.git_id(),
        "workload": str(task.workload),
        "trials": len(artifacts),
        "build_seconds": building,
        "rows": rows,
        "ratio": ratio(rows),
        "whole": whole,
        "whole_ratio": whole_ratio(whole),
        "seconds": time.perf_counter() - began,
    }
    given.out.write_text(json.dumps(data, indent=1) + "\n")
    print(f"{data['seconds']:.0f} s in all")


if __name__ == "__main__":
    main()
