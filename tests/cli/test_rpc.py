"""``tune --runner rpc`` from end to end: a tracker and two servers, one of which dies meanwhile.

Candidates are libraries for the CPU that compute what the tuned operator does. All else is real:
the commands of the documentation, TVM's tracker and search, the log and the database.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tvm

from tests.cli.test_cli import invoke
from tvm_layout_ext.tune import Database, Log, Record
from tvm_layout_ext.tune.measure import job as trials
from tvm_layout_ext.tune.measure import measured
from tvm_layout_ext.tune.measure.builder.builder import INFO, Building, CubinBuilder
from tvm_layout_ext.tune.measure.rpc.tracker import NoServerError, Tracker
from tvm_layout_ext.tune.space.task import make_task

ROOT = Path(__file__).parents[2]
HOST, TRIALS, FILE = "127.0.0.1", 16, "trials.jsonl"
SHAPE = (96, 64)
KEY = f"cli{os.getpid()}"


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

    def begin(self, modules: Sequence[Any]) -> list[Building]:
        """A copy for each."""
        folders = [Path(tempfile.mkdtemp(dir=self.folder)) for _ in modules]
        for folder in folders:
            shutil.copytree(self.artifact, folder, dirs_exist_ok=True)
        built: Future[str | None] = Future()
        built.set_result(None)
        return [Building(str(folder), built) for folder in folders]

    def apart(self, function: Callable[..., Any], *args: Any) -> Future[Any]:
        """Run a function here."""
        done: Future[Any] = Future()
        done.set_result(function(*args))
        return done

    def close(self) -> None:
        """Remove all."""
        shutil.rmtree(self.folder)


def documented(port: int) -> list[tuple[list[str], dict[str, str]]]:
    """The commands that start a tracker and servers, with their variables, from ``docs/tuning.md``.

    Address, key and interpreter are those of the test.
    """
    pattern = r"^(.*python -m \S*(?:rpc_tracker|rpc_server) .*)$"
    lines = re.findall(pattern, (ROOT / "docs" / "tuning.md").read_text(), re.M)
    commands = []
    for line in lines:
        text = line.replace("HOST:9190", f"{HOST}:{port}").replace("9190", str(port))
        words = shlex.split(text.replace("--key h200", f"--key {KEY}").replace("0.0.0.0", HOST))
        variables = dict(word.split("=") for word in words if re.match("[A-Z_]+=", word))
        python = words.index("python")
        commands.append(([sys.executable, *words[python + 1 :]], variables))
    return commands


@contextmanager
def started(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, which is ended with all that it has started."""
    process = subprocess.Popen(
        command, env=os.environ | variables, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it has started, as a power cut would."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """A port that the tracker can have; by default it takes none above 9198."""
    for port in range(9190, 9199):
        with socket.socket() as one:
            try:
                one.bind((HOST, port))
            except OSError:
                continue
            return port
    pytest.skip("ports 9190 to 9198 are taken on this machine")


def wait_for(tracker: Tracker, count: int) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if len(tracker.servers()) == count:
                return
        except NoServerError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{count} servers are not there after 60 s")


def records(log: Path) -> list[Record]:
    return Log(log).read().records if log.exists() else []


def kill_one_at_work(log: Path, servers: list[subprocess.Popen[bytes]]) -> None:
    """Once a few trials are written down, kill the server that did the last of them."""
    end = time.monotonic() + 60
    while len(records(log)) < TRIALS // 4 and time.monotonic() < end:
        time.sleep(0.05)
    (port,) = [int(str(record.server).split(":")[1]) for record in records(log)[-1:]]
    kill(next(one for one in servers if listens(one, port)))


def listens(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether a process listens on a port, which Linux tells in tables of sockets and of files."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    nodes = {row[9] for row in rows if row[3] == "0A" and int(row[1].split(":")[1], 16) == port}
    links = [os.readlink(one) for one in Path(f"/proc/{process.pid}/fd").iterdir()]
    return any(f"socket:[{node}]" in links for node in nodes)


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's tables of sockets")
def test_tune_through_a_tracker_accounts_for_every_trial_though_a_server_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "CubinBuilder", CpuBuilder)
    # The tuner says cuda of what it builds; these candidates run on the servers' CPU.
    monkeypatch.setattr(trials, "_CPU_TARGETS", ("cuda",))
    port, log = free_port(), tmp_path / "log"
    tracker = Tracker(HOST, port, KEY)
    (first, *others) = documented(port)
    assert "tvm.exec.rpc_tracker" in first[0]
    assert [words["CUDA_VISIBLE_DEVICES"] for _, words in others] == ["0", "1"]
    with ExitStack() as stack:
        stack.enter_context(started(*first))
        # TVM's server tries again after 5 seconds where the tracker is not there yet.
        wait_for(tracker, 0)
        servers = [stack.enter_context(started(*one)) for one in others]
        wait_for(tracker, 2)
        killer = threading.Thread(target=kill_one_at_work, args=(log, servers))
        killer.start()
        ran = invoke(
            "tune", "transpose", "--shape", *SHAPE, "--trials", TRIALS, "--strategy", "replay",
            "--runner", "rpc", "--tracker", f"{HOST}:{port}", "--key", KEY, "--log", log,
        )  # fmt: skip
        killer.join()
        assert len(tracker.servers()) == 1
        (left,) = tracker.servers()
    assert ran.code == 0, ran.err
    assert f"{TRIALS} of " in ran.out
    assert "Seconds of a trial, medians of 16: build" in ran.out
    written = records(log)
    assert len({record.id for record in written}) == len(written) == TRIALS
    assert [(record.status, record.runner) for record in written] == [("ok", "rpc")] * TRIALS
    assert all(record.verified_on for record in written)
    # A finalist has a line for its trial, too, and was timed again after a server had died.
    lines = [Record.from_json(json.loads(one)) for one in log.joinpath(FILE).open()]
    # So has a winner that was none of the finalists, if these were slower in their turns.
    first = {record.id: record for record in reversed(lines) if record.kind == "trial"}
    servers_of = Counter(record.server for record in first.values())
    assert (len(servers_of), servers_of.total()) == (2, TRIALS)
    assert servers_of[left] > TRIALS // 2
    phases = {"build", "wait", "session", "upload", "run"}
    assert all(phases == set(record.phases or {}) for record in lines if record.kind == "trial")
    assert {record.server for record in lines if record.kind == "finalist"} == {left}
    stored = Database(log).read()
    assert (len(stored.records), stored.corrupt) == (TRIALS, 0)
    assert all(one.seconds is not None for one in stored.records)
