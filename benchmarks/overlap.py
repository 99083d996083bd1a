"""What a batch under way saves: the tuner's loop where proposals, builds and trials only sleep.

``python -m benchmarks.overlap`` runs on any machine; nothing is built and nothing measured. The
default seconds are those of GEMMs in float16 on a machine with an H200.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_layout_ext._compat import without_tensor_intrinsics
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.search.batches import Batches
from tvm_layout_ext.tune.space.candidate import traced
from tvm_layout_ext.tune.space.task import make_task


@derived_object
class SleepingSearch(ms.search_strategy.PySearchStrategy):
    """Proposes the same candidate again and again, each batch after some seconds."""

    def __init__(self, candidate: Any, seconds: float) -> None:
        super().__init__()
        self.candidate, self.seconds, self.size = candidate, seconds, 0

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        """Needs nothing of the context."""

    def pre_tuning(self, _trials: int, size: int, *_rest: Any) -> None:
        """Keep the size of a batch."""
        self.size = size

    def post_tuning(self) -> None:
        """Nothing is held."""

    def generate_measure_candidates(self) -> list[Any]:
        """Propose a batch."""
        time.sleep(self.seconds)
        return [self.candidate] * self.size

    def notify_runner_results(self, candidates: Sequence[Any], results: Sequence[Any]) -> None:
        """Learns nothing."""


class Bench:
    """A builder with some cores and a runner with some GPUs, all of which sleep."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.cores = ThreadPoolExecutor(given.cores)
        self.gpus = ThreadPoolExecutor(given.gpus)

    def begin(self, modules: Sequence[Any]) -> list[Any]:
        """Begin to build each candidate, and to measure it once it is built."""
        return [self._after(self.cores.submit(time.sleep, self.given.build)) for _ in modules]

    def _after(self, built: Future[None]) -> Future[Any]:
        future: Future[Any] = Future()

        def measure() -> None:
            time.sleep(self.given.measure)
            future.set_result(ms.runner.RunnerResult([1.0], None))

        built.add_done_callback(lambda _: self.gpus.submit(measure))
        return future


def seconds(given: argparse.Namespace, ahead: int) -> float:
    """Seconds of a search with so many batches under way while one is proposed."""
    task = make_task("transpose", (64, 64), "float32")
    candidate = ms.search_strategy.MeasureCandidate(traced(task, task.space.default()), [])
    with without_tensor_intrinsics():
        context = ms.TuneContext(
            mod=task.unscheduled,
            target=cuda_target("sm_90a"),
            space_generator=ms.space_generator.ScheduleFn(
                lambda _: None, sch_rules=[], postprocs=[], mutator_probs={}
            ),
            search_strategy=SleepingSearch(candidate, given.propose),
            num_threads=1,
        )
    bench = Bench(given)
    start = time.perf_counter()
    model = ms.cost_model.RandomModel()
    Batches(context, bench.begin, model, ahead).run(given.trials, given.size)
    return time.perf_counter() - start


def main() -> None:
    """Print the seconds of searches with none and with one batch under way, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--size", type=int, default=8, help="trials of a batch")
    parser.add_argument("--propose", type=float, default=2.0, help="seconds a batch")
    parser.add_argument("--build", type=float, default=3.3, help="seconds a candidate and core")
    parser.add_argument("--measure", type=float, default=0.13, help="seconds a candidate")
    parser.add_argument("--cores", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=1)
    given = parser.parse_args()
    found = [seconds(given, ahead) for ahead in (0, 1)]
    print(
        f"{given.trials} trials on {given.cores} cores and {given.gpus} GPU(s): {found[0]:.1f} s "
        f"batch after batch, {found[1]:.1f} s with one under way: {found[0] / found[1]:.2f} times"
    )


if __name__ == "__main__":
    main()
