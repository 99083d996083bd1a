"""Seconds that tuning takes: a product by 32 trials, a transformer block by 2 and by 16 a function.

``python -m benchmarks.tuning_speed CASE --out FILE`` runs one of :data:`CASES` from a fresh process
on, as users do: what is imported, started and compiled counts. It tells the wall time of each
function and what its trials waited for, the CPU time of this process and of its workers, and where
the main thread was, by samples. ``--seconds`` ends it as Ctrl-C would, and then it says so.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

_BEGIN = time.perf_counter()
#: Seconds between two looks at the main thread.
_EVERY = 0.02
#: Functions that the samples name.
_TOLD = 60


def _product(log: Path, trials: int) -> Any:
    import tvm_layout_ext as tlx

    return tlx.tune("gemm_nt", shape=(3072, 5120, 6144), trials=trials, runner="cuda", log=log)


def _block(log: Path, trials: int) -> Any:
    import tvm_layout_ext as tlx
    from benchmarks.model_zoo import MODELS

    module = MODELS["block 1024, 128 tokens"]().module
    return tlx.tune_module(module, trials=trials, runner="cuda", log=log)


#: What is tuned, by how many trials, and the seconds that it may take on 16 cores and one GPU.
CASES: dict[str, tuple[Callable[..., Any], int, float]] = {
    "product": (_product, 32, 30.0),
    "block_2": (_block, 2, 30.0),
    "block_16": (_block, 16, 120.0),
}


class Samples:
    """Where the main thread is, from time to time: the functions on its stack."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.innermost: Counter[str] = Counter()
        self.count = 0
        self._main = threading.main_thread().ident
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_EVERY)
            frame = sys._current_frames().get(self._main or 0)
            names = []
            while frame is not None:
                code = frame.f_code
                names.append(f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_name}")
                frame = frame.f_back
            self.count += 1
            self.innermost.update(names[:1])
            self.found.update(set(names))

    def told(self) -> dict[str, list[tuple[str, float]]]:
        """Shares of the samples, most first."""
        return {
            what: [(name, round(n / self.count, 4)) for name, n in counter.most_common(_TOLD)]
            for what, counter in (("on the stack", self.found), ("innermost", self.innermost))
        }


def trials_of(result: Any) -> dict[str, dict[str, Any]]:
    """What the trials of each function took, by phase, and how they ended."""
    found = getattr(result, "results", None) or {"product": result}
    rows = {}
    for name, one in found.items():
        phases: Counter[str] = Counter()
        for record in one.trials:
            phases.update(record.phases or {})
        ended = Counter(record.status for record in one.trials)
        rows[name] = {
            "phases": {key: round(value, 2) for key, value in phases.items()},
            "statuses": dict(ended),
            "best": None if one.best is None else one.best.score,
            "default": one.default.score,
        }
    return rows


def main(
    case: Annotated[str, typer.Argument(help=", ".join(CASES))],
    out: Annotated[Path | None, typer.Option(help="JSON file to write.")] = None,
    trials: Annotated[int, typer.Option(help="Instead of the case's.")] = 0,
    seconds: Annotated[float, typer.Option(help="End it after so many, 0 for never.")] = 0.0,
) -> None:
    """Tune, and tell what took how long."""
    tune, usual, most = CASES[case]
    samples = Samples()
    if seconds:
        timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
        timer.daemon = True
        timer.start()
    with tempfile.TemporaryDirectory() as log:
        result = tune(Path(log), trials or usual)
    wall = time.perf_counter() - _BEGIN
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = {
        "command": f"python -m benchmarks.tuning_speed {case}",
        "trials": trials or usual,
        "cores": len(os.sched_getaffinity(0)),
        "interrupted": result.interrupted,
        "seconds": round(wall, 2),
        "asked": most,
        "cpu_seconds": round(own.ru_utime + own.ru_stime, 2),
        "cpu_seconds_of_workers": round(others.ru_utime + others.ru_stime, 2),
        "functions": trials_of(result),
        "samples": samples.told(),
    }
    if out is not None:
        out.write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found["functions"].items():
        print(f"{name}: {row['statuses']}, {row['phases']}")
    print(
        f"{case}: {wall:.1f} s{' until it was ended' if result.interrupted else ''}, asked "
        f"{most:g}; {found['cpu_seconds']} CPU s here, {found['cpu_seconds_of_workers']} by workers"
    )


if __name__ == "__main__":
    typer.run(main)
