"""``tune --runner rpc`` from end to end: a tracker and two servers, one of which dies meanwhile.

Candidates are libraries for the CPU that compute what the tuned operator does. All else is real:
TVM's tracker and search, the servers, the log and the database.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.cli.test_cli import invoke
from tests.tune.measure.rpc.test_run import HOST, KEY, Farm
from tvm_layout_ext.tune import Database, Log, Record
from tvm_layout_ext.tune.measure import measured
from tvm_layout_ext.tune.measure.backend import called_later
from tvm_layout_ext.tune.measure.builder.builder import INFO, Building, CubinBuilder
from tvm_layout_ext.tune.measure.worker_slots import PooledRunner
from tvm_layout_ext.tune.space.task import make_task

TRIALS, FILE = 16, "trials.jsonl"
SHAPE = (96, 64)


class CpuBuilder:
    """Builds the unscheduled operator for the CPU, once, and copies it for each candidate."""

    def __init__(self, architecture: str, workers: int | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        builder = CubinBuilder(architecture, 1)
        module = make_task("transpose", SHAPE, "float32").unscheduled
        (built,) = builder.begin([module], tvm.target.Target("llvm"))
        assert built.error.result() is None
        self.artifact = Path(shutil.copytree(built.folder, self.folder / "built"))
        builder.close()
        info = json.loads((self.artifact / INFO).read_text()) | {"smem_bytes": 4224}
        (self.artifact / INFO).write_text(json.dumps(info))

    def asked(self, function: Any, *args: Any) -> Any:
        """What this process finds."""
        return called_later(function, *args)

    def begin(self, modules: Sequence[Any], later: bool = False) -> list[Building]:
        """A copy for each."""
        folders = [Path(tempfile.mkdtemp(dir=self.folder)) for _ in modules]
        for folder in folders:
            shutil.copytree(self.artifact, folder, dirs_exist_ok=True)
        built: Future[str | None] = Future()
        built.set_result(None)
        return [Building(str(folder), built) for folder in folders]

    def apart(self, function: Callable[..., Any], *args: Any, **_: Any) -> Future[Any]:
        """Run a function here."""
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done

    def close(self) -> None:
        """Remove all."""
        shutil.rmtree(self.folder)


def records(log: Path) -> list[Record]:
    return Log(log).read().records if log.exists() else []


def kill_at_work(farm: Farm, log: Path) -> None:
    """Kill a server once a few trials are written down."""
    end = time.monotonic() + 60
    while len(records(log)) < TRIALS // 4 and time.monotonic() < end:
        time.sleep(0.05)
    farm.kill_one()


@pytest.mark.whole
def test_tune_through_a_tracker_accounts_for_every_trial_though_a_server_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "CubinBuilder", CpuBuilder)
    # The tuner says cuda of what it builds; these candidates run on the servers' CPU.
    monkeypatch.setattr(PooledRunner, "kind", "cpu")
    log, farm = tmp_path / "log", Farm(2)
    killer = threading.Thread(target=kill_at_work, args=(farm, log))
    killer.start()
    ran = invoke(
        "tune", "transpose", "--shape", *SHAPE, "--trials", TRIALS, "--strategy", "replay",
        "--runner", "rpc", "--tracker", f"{HOST}:{farm.port}", "--key", KEY, "--log", log,
    )  # fmt: skip
    killer.join()
    (left,) = farm.tracker.servers()
    farm.close()
    assert ran.code == 0, ran.err
    assert f"{TRIALS} of " in ran.out
    assert "Seconds of a trial, medians of 16: build" in ran.out
    written = records(log)
    assert len({record.id for record in written}) == len(written) == TRIALS
    assert [(record.status, record.runner) for record in written] == [("ok", "rpc")] * TRIALS
    assert all(record.verified_on for record in written)
    # A finalist has a line for its trial, too, and was timed again after a server had died.
    lines = [Record.from_json(json.loads(one)) for one in log.joinpath(FILE).open()]
    first = {record.id: record for record in reversed(lines) if record.kind == "trial"}
    servers_of = Counter(record.server for record in first.values())
    # The one that dies may have finished nothing by then.
    assert servers_of.total() == TRIALS
    assert servers_of[left] > TRIALS // 2
    phases = {"build", "wait", "session", "upload", "run"}
    assert all(phases == set(record.phases or {}) for record in lines if record.kind == "trial")
    assert {record.server for record in lines if record.kind == "finalist"} == {left}
    stored = Database(log).read()
    assert (len(stored.records), stored.corrupt) == (TRIALS, 0)
    assert all(one.seconds is not None for one in stored.records)
