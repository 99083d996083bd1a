"""The tuner killed with SIGKILL at random points and started again: no record lost or doubled."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tvm.s_tir import meta_schedule as ms

from tvm_layout_ext.tune.database import Database
from tvm_layout_ext.tune.records import Log

TRIALS, KILLS = 24, 5


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tune.killed", str(folder), str(TRIALS)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def told_until_killed(folder: Path, rng: random.Random) -> list[str]:
    """Start a run, kill it after some of its trials at any moment of the next; the ids it told."""
    process = start(folder)
    assert process.stdout is not None
    told = []
    for _ in range(rng.randrange(TRIALS)):
        line = process.stdout.readline().strip()
        if line in ("", "finished"):
            break
        told.append(line)
    time.sleep(rng.random() * 0.05)
    process.kill()
    rest = process.communicate()[0].split()
    return told + [line for line in rest if line != "finished"]


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(10))
def test_killed_tuner_loses_and_doubles_no_record(seed: int, tmp_path: Path) -> None:
    rng, told = random.Random(seed), set()
    for _ in range(KILLS):
        told |= set(told_until_killed(tmp_path, rng))
        written = [json.loads(line)["id"] for line in whole_lines(tmp_path / "trials.jsonl")]
        assert told <= set(written)
        assert len(written) == len(set(written))
    output, _ = start(tmp_path).communicate()
    assert output.split()[-1] == "finished"
    reading = Log(tmp_path).read()
    assert len(reading.records) == TRIALS
    assert told <= {record.id for record in reading.records}
    assert reading.corrupt <= KILLS
    Database(tmp_path).mend()
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
