"""Seconds that tuning takes: a product by 32 trials, a transformer block by 2 and by 16 a function.

``python -m benchmarks.tuning_speed CASE --out FILE`` runs one of :data:`CASES` from a fresh process
on, as users do: what is imported, started and compiled counts. It tells the wall time of each
function and what its trials waited for, the CPU time of this process and of what it started, and
where the main thread was, by samples. ``--seconds`` ends it there, with what it knows until then.
"""

from __future__ import annotations

import json
import os
import resource
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


def _product(**options: Any) -> None:
    import tvm_layout_ext as tlx

    tlx.tune("gemm_nt", shape=(3072, 5120, 6144), runner="cuda", **options)


def _block(**options: Any) -> None:
    import tvm_layout_ext as tlx
    from benchmarks.model_zoo import MODELS

    tlx.tune_module(MODELS["block 1024, 128 tokens"]().module, runner="cuda", **options)


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


class Trials:
    """When each trial ended, and what it took, by phase."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def __call__(self, record: Any, _done: int, _total: int) -> None:
        """Take note of a trial."""
        self.found.append(
            {
                "at": round(time.perf_counter() - _BEGIN, 2),
                "function": record.workload.operator,
                "status": record.status,
                "phases": {key: round(value, 2) for key, value in (record.phases or {}).items()},
            }
        )
        print(self.found[-1], flush=True)


def found(case: str, trials: Trials, samples: Samples, ended: bool) -> dict[str, Any]:
    """All that is known by now."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    others = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "command": f"python -m benchmarks.tuning_speed {case}",
        "cores": len(os.sched_getaffinity(0)),
        "ended": ended,
        "seconds": round(time.perf_counter() - _BEGIN, 2),
        "asked": CASES[case][2],
        "cpu_seconds": round(own.ru_utime + own.ru_stime, 2),
        "cpu_seconds_of_ended_children": round(others.ru_utime + others.ru_stime, 2),
        "trials": trials.found,
        "samples": samples.told(),
    }


def main(
    case: Annotated[str, typer.Argument(help=", ".join(CASES))],
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    trials: Annotated[int, typer.Option(help="Instead of the case's.")] = 0,
    seconds: Annotated[float, typer.Option(help="Stop after so many, 0 for never.")] = 0.0,
) -> None:
    """Tune, and tell what took how long."""
    tune, usual, asked = CASES[case]
    samples, done = Samples(), Trials()

    def stop() -> None:
        out.write_text(json.dumps(found(case, done, samples, ended=False), indent=1) + "\n")
        print(f"{case}: {len(done.found)} trials in {seconds:g} s", flush=True)
        os._exit(1)

    if seconds:
        timer = threading.Timer(seconds - (time.perf_counter() - _BEGIN), stop)
        timer.daemon = True
        timer.start()
    with tempfile.TemporaryDirectory() as log:
        tune(log=Path(log), trials=trials or usual, progress=done)
    told = found(case, done, samples, ended=True)
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"{case}: {told['seconds']} s, asked {asked:g}; {told['cpu_seconds']} CPU s here")


if __name__ == "__main__":
    typer.run(main)
