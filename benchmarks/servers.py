"""How much faster one run of the tuner measures with two GPUs behind a tracker than with one.

``python -m benchmarks.servers --trials 64 --out FILE`` on a machine with two GPUs. The candidates
are built first; then the same libraries are measured through the tracker with one server, and with
two, in turns. A second figure is that of whole runs of ``tune``, builds included.
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

from tvm.rpc.tracker import Tracker as TrackerProcess
from tvm.s_tir.meta_schedule.builder import BuilderInput
from tvm.s_tir.meta_schedule.runner import RunnerInput

from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import environment, tune
from tvm_layout_ext.tune.builder import CubinBuilder
from tvm_layout_ext.tune.candidate import traced
from tvm_layout_ext.tune.run_rpc import RpcRunner
from tvm_layout_ext.tune.search import make_task
from tvm_layout_ext.tune.task import Task
from tvm_layout_ext.tune.tracker import Tracker

HOST, KEY = "127.0.0.1", "gpu"
START_SECONDS = 60


class Farm:
    """A tracker on this machine, and one server for each of some of its GPUs."""

    def __init__(self) -> None:
        self.tracker_process = TrackerProcess(HOST, 9390, 9590, silent=True)
        self.port = int(self.tracker_process.port)
        self.servers: list[subprocess.Popen[bytes]] = []

    def grow(self, count: int) -> None:
        """Start servers until there are so many, and wait for them."""
        options = ["--tracker", f"{HOST}:{self.port}", "--key", KEY, "--host", HOST]
        command = [sys.executable, "-m", "tvm_layout_ext.tune.rpc_server", *options]
        for gpu in range(len(self.servers), count):
            seen = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
            self.servers.append(subprocess.Popen(command, env=seen, start_new_session=True))
        end = time.monotonic() + START_SECONDS
        while len(Tracker(HOST, self.port, KEY).servers()) < count:
            if time.monotonic() > end:
                raise RuntimeError(f"{count} servers did not start within {START_SECONDS} s.")
            time.sleep(0.2)

    def close(self) -> None:
        """End the servers and the tracker."""
        for server in self.servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        self.tracker_process.terminate()


def rate(task: Task, port: int, artifacts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Trials a minute of prebuilt candidates, the best of some rounds of all, and failures."""
    runner = RpcRunner(task, HOST, port, KEY)
    inputs = [RunnerInput(artifact, "cuda", []) for artifact in artifacts]
    # Starts the client processes, opens the contexts and draws the inputs.
    _measure(runner, inputs[:8])
    seconds, failures = [], 0
    for _ in range(rounds):
        start = time.perf_counter()
        failures += _measure(runner, inputs)
        seconds.append(time.perf_counter() - start)
    servers = len(runner.tracker.servers())
    runner.close()
    per_minute = 60 * len(artifacts) / median(seconds)
    return {"servers": servers, "per_minute": per_minute, "seconds": seconds, "failed": failures}


def _measure(runner: RpcRunner, inputs: Sequence[RunnerInput]) -> int:
    return sum(future.result().error_msg is not None for future in runner.run(inputs))


def whole_run(task: Task, port: int, trials: int, seed: int) -> float:
    """Trials a minute of a run of ``tune``: scheduling, building and measuring."""
    start = time.perf_counter()
    runner = f"rpc:{HOST}:{port}:{KEY}"
    result = tune(task.operator, shape=task.shape, trials=trials, runner=runner, seed=seed)
    return 60 * len(result.trials) / (time.perf_counter() - start)


def build(task: Task, count: int) -> tuple[CubinBuilder, list[str]]:
    """Build the first candidates of the seeded order."""
    builder = CubinBuilder(task.architecture.name)
    configs = [config for config, _ in zip(task.space.sample(0), range(count), strict=False)]
    target = cuda_target(task.architecture.name)
    built = builder.build([BuilderInput(traced(task, config).mod, target) for config in configs])
    return builder, [str(one.artifact_path) for one in built if one.error_msg is None]


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", type=int, default=24, help="trials of a whole run; 0: none")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    task = make_task("transpose", (4096, 4096), "float32")
    builder, artifacts = build(task, given.trials)
    farm = Farm()
    rows: list[dict[str, Any]] = []
    try:
        for servers in (1, 2):
            farm.grow(servers)
            row = rate(task, farm.port, artifacts, given.rounds)
            if given.whole:
                row["whole_run_per_minute"] = whole_run(task, farm.port, given.whole, servers)
            rows.append(row)
            print(row, flush=True)
    finally:
        farm.close()
        builder.close()
    ratio = rows[1]["per_minute"] / rows[0]["per_minute"]
    print(f"two servers measure {ratio:.2f} times the trials a minute of one")
    data = {
        "device": environment.cuda_device(),
        "versions": environment.versions(),
        "git": environment.git_id(),
        "workload": str(task.workload),
        "trials": len(artifacts),
        "rows": rows,
        "ratio": ratio,
    }
    given.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
