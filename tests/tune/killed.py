"""A run of the tuner to be killed.

It tells the id of each trial after it was written down. Candidates cost next to nothing.
"""

from __future__ import annotations

import sys
import time
from multiprocessing.connection import Connection

from tests.tune.helpers import make_model
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import Record, tune
from tvm_layout_ext.tune.measure.measurement import Measurement
from tvm_layout_ext.tune.search.run import Run
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task


class Quick:
    """Costs a function of the configuration."""

    name = "simulate"
    device = "simulated GPU"

    def run(self, _task: Task, config: Config) -> Measurement:
        time.sleep(0.02)
        return Measurement(4224, make_model(100.0 - config["align_offset"]))

    def verify(self, task: Task, _config: Config) -> str:
        return str(task.workload)


def main(folder: str, trials: int, there: Connection) -> None:
    """Tune a transpose; send ``started``, the ids, and ``finished``."""
    steps = vars(sys.modules[Run.__module__])
    steps |= {"RANKED": 16, "POPULATION": 8, "GENERATIONS": 1}

    def tell(record: Record, _done: int, _total: int) -> None:
        there.send_bytes(record.id.encode())

    there.send_bytes(b"started")
    # A process forked from one that has looked for a GPU may not ask for its architecture.
    target = cuda_target("sm_90")
    tune(
        "transpose",
        shape=(64, 64),
        trials=trials,
        runner=Quick(),
        log=folder,
        target=target,
        progress=tell,
    )
    there.send_bytes(b"finished")
