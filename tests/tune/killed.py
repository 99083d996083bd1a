"""A run of the tuner to be killed: ``python -m tests.tune.killed FOLDER TRIALS``.

Prints the id of each trial after it was written down. Candidates cost next to nothing.
"""

from __future__ import annotations

import sys
import time

from tests.tune.helpers import make_model
from tvm_layout_ext.tune import Record, tune
from tvm_layout_ext.tune.knobs import Config
from tvm_layout_ext.tune.measurement import Measurement
from tvm_layout_ext.tune.run import Run
from tvm_layout_ext.tune.task import Task


class Quick:
    """Costs a function of the configuration."""

    name = "simulate"
    device = "simulated GPU"

    def run(self, _task: Task, config: Config) -> Measurement:
        time.sleep(0.02)
        return Measurement(4224, make_model(100.0 - config["align_offset"]))

    def verify(self, task: Task, _config: Config) -> str:
        return str(task.workload)


def tell(record: Record, _done: int, _total: int) -> None:
    print(record.id, flush=True)


def main() -> None:
    folder, trials = sys.argv[1], int(sys.argv[2])
    steps = vars(sys.modules[Run.__module__])
    steps |= {"RANKED": 16, "POPULATION": 8, "GENERATIONS": 1}
    print("started", flush=True)
    tune("transpose", shape=(64, 64), trials=trials, runner=Quick(), log=folder, progress=tell)
    print("finished", flush=True)


if __name__ == "__main__":
    main()
