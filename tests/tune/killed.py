"""A run of the tuner to be killed.

It tells the id of each trial after it was written down. Candidates cost next to nothing.
"""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

from tests.tune.helpers import BRIEF, FakeRunner
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import Record, tune
from tvm_layout_ext.tune.measure.measurement import Measurement
from tvm_layout_ext.tune.search import run
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task


class Quick(FakeRunner):
    """Takes a moment for each."""

    def run(self, task: Task, config: Config) -> Measurement:
        time.sleep(0.02)
        return super().run(task, config)


def main(folder: str, trials: int, there: Connection) -> None:
    """Tune a transpose; send ``started``, the ids, and ``finished``."""
    vars(run).update(BRIEF)

    def tell(record: Record, _done: int, _total: int) -> None:
        there.send_bytes(record.id.encode())

    there.send_bytes(b"started")
    # A process forked from one that has looked for a GPU may not ask for its architecture.
    target = cuda_target("sm_90")
    options = {"runner": Quick(), "log": folder, "target": target, "progress": tell}
    tune("transpose", shape=(64, 64), trials=trials, **options)
    there.send_bytes(b"finished")
