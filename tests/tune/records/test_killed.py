"""The tuner killed with SIGKILL at random points and started again: no record lost or doubled."""

from __future__ import annotations

import json
import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tvm.s_tir import meta_schedule as ms

from tests import sampling
from tests.forks import FORKS
from tests.tune.helpers import BRIEF, FakeRunner
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import Record, tune
from tvm_layout_ext.tune.measure.backend import Measurement
from tvm_layout_ext.tune.records.log import Log
from tvm_layout_ext.tune.search import prepare, run
from tvm_layout_ext.tune.space.knobs import Config
from tvm_layout_ext.tune.space.task import Task

TRIALS = 24


class Quick(FakeRunner):
    """Takes a moment for each."""

    def run(self, task: Task, config: Config) -> Measurement:
        time.sleep(0.02)
        return super().run(task, config)


def tune_and_tell(folder: str, there: Connection) -> None:
    """Tune a transpose; send ``started``, each trial's id once written down, and ``finished``."""
    vars(run).update(BRIEF)
    prepare.RANKED = BRIEF["RANKED"]

    def tell(record: Record, _done: int, _total: int) -> None:
        there.send_bytes(record.id.encode())

    there.send_bytes(b"started")
    # A process forked from one that has looked for a GPU may not ask for its architecture.
    target = cuda_target("sm_90")
    options = {"runner": Quick(), "log": folder, "target": target, "progress": tell}
    tune("transpose", shape=(64, 64), trials=TRIALS, **options)
    there.send_bytes(b"finished")


class Run:
    """A run of the tuner in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._told, theirs = FORKS.Pipe(duplex=False)
        self.process = FORKS.Process(target=tune_and_tell, args=(str(folder), theirs), daemon=True)
        self.process.start()
        theirs.close()
        assert self.next() == "started"

    def next(self) -> str:
        """What it tells next; nothing once it has ended, or was killed in the middle of a word."""
        try:
            return self._told.recv_bytes().decode()
        except (EOFError, OSError):
            return ""

    def rest(self) -> list[str]:
        """All that it still tells; it has ended then."""
        words = list(iter(self.next, ""))
        self.process.join()
        self._told.close()
        return words


def told_until_killed(folder: Path, rng: random.Random) -> list[str]:
    """Start a run, kill it after some of its trials at any moment of the next; the ids it told."""
    run = Run(folder)
    told = []
    for _ in range(rng.randrange(TRIALS)):
        word = run.next()
        if word in ("", "finished"):
            break
        told.append(word)
    time.sleep(rng.random() * 0.05)
    run.process.kill()
    return told + [word for word in run.rest() if word != "finished"]


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10))
def test_killed_tuner_loses_and_doubles_no_record(seed: int, tmp_path: Path) -> None:
    rng, told = random.Random(seed), set()
    kills = 5 if sampling.whole else 2
    for _ in range(kills):
        told |= set(told_until_killed(tmp_path, rng))
        written = [json.loads(line)["id"] for line in whole_lines(tmp_path / "trials.jsonl")]
        assert told <= set(written)
        assert len(written) == len(set(written))
    assert Run(tmp_path).rest()[-1] == "finished"
    reading = Log(tmp_path).read()
    assert len(reading.records) == TRIALS
    assert told <= {record.id for record in reading.records}
    assert reading.corrupt <= kills
    stored = ms.database.JSONDatabase(work_dir=str(tmp_path)).get_all_tuning_records()
    traces = [json.dumps(record.trace.as_json(), default=str) for record in stored]
    assert len(traces) == len(set(traces)) == TRIALS


def whole_lines(path: Path) -> list[str]:
    """Lines that are JSON; a killed writer may leave one that is not."""
    if not path.exists():
        return []
    good = []
    for line in path.read_text().splitlines():
        try:
            json.loads(line)
        except ValueError:
            continue
        good.append(line)
    return good
