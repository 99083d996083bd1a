"""The RPC runner against a tracker and two servers of its own, one of which is killed."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from tvm.rpc.tracker import Tracker as TrackerProcess

from tests import forks
from tests.tune.artifacts import Shelf, doubling_task
from tvm_layout_ext import te
from tvm_layout_ext.errors import TargetError
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.tune.measure.builder.builder import CubinBuilder
from tvm_layout_ext.tune.measure.protocol import Measured, Timing
from tvm_layout_ext.tune.measure.rpc import run, server
from tvm_layout_ext.tune.measure.rpc.run import Client, Gpu, RpcRunner, misfit
from tvm_layout_ext.tune.measure.rpc.server import VARIABLE, allowed, shared
from tvm_layout_ext.tune.measure.rpc.server import main as serve
from tvm_layout_ext.tune.measure.rpc.tracker import NoServerError, Tracker
from tvm_layout_ext.tune.measure.worker_slots import ServerLostError
from tvm_layout_ext.tune.search.tune import tune

#: Another run of these tests on this machine has another key.
HOST, KEY = "127.0.0.1", f"loopback{os.getpid()}"
QUICK = Timing(repeat_ms=0.5, repeats=2, most_repeats=4, spread=0.5, l2_bytes=20_000)


class Farm:
    """A tracker and servers on this machine, which may be forks."""

    def __init__(self, count: int, forked: bool = True) -> None:
        self._forked = forked and forks.enabled
        self._tracker = TrackerProcess(HOST, 9390, 9590, silent=True)
        self.port = int(self._tracker.port)
        self.tracker = Tracker(HOST, self.port, KEY)
        self._servers = [self._start() for _ in range(count)]
        self._wait(count)

    def _start(self) -> Any:
        options = ["--tracker", f"{HOST}:{self.port}", "--key", KEY, "--host", HOST]
        if self._forked:
            return forks.serve(options)
        return subprocess.Popen(
            [sys.executable, "-m", "tvm_layout_ext.tune.rpc_server", *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self, count: int) -> None:
        deadline = time.monotonic() + 120
        while len(self.tracker.servers()) != count and time.monotonic() < deadline:
            time.sleep(0.2)
        assert len(self.tracker.servers()) == count

    def kill_one(self) -> None:
        """End a server with all its processes, as a power cut would."""
        server = self._servers.pop()
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

    def close(self) -> None:
        while self._servers:
            self.kill_one()
        self._tracker.terminate()


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    made = Farm(2)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("artifacts"))


def on_cpus(farm: Farm, timeout: float) -> RpcRunner:
    made = RpcRunner(doubling_task(), HOST, farm.port, KEY, timeout=timeout, timing=QUICK)
    made.kind = "cpu"
    return made


@pytest.fixture(scope="module")
def runner(farm: Farm) -> Iterator[RpcRunner]:
    made = on_cpus(farm, 8)
    yield made
    made.close()


def end_spare_sessions(runner: RpcRunner) -> None:
    while runner.fleet.spare:
        runner.fleet.spare.pop().end()


def results(runner: RpcRunner, artifacts: list[str]) -> list[Measured]:
    return [future.result() for future in runner.begin(artifacts)]


@pytest.fixture
def built() -> Iterator[list[str]]:
    """Candidates that TVM builds for the CPU."""
    builder = CubinBuilder("sm_90a", workers=1)
    function = te.create_prim_func(doubling_task().operator.compute((1024,), "float32"))
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    found = builder.begin([module] * 4, tvm.target.Target("llvm"))
    assert [one.error.result() for one in found] == [None] * 4
    yield [one.folder for one in found]
    builder.close()


@pytest.mark.parametrize(
    ("arch", "capability", "runs"),
    [
        ("sm_90a", "9.0", True),
        ("sm_90a", "10.0", False),
        ("sm_90a", "8.9", False),
        ("sm_80", "8.6", True),
        ("sm_86", "8.0", False),
        ("sm_80", "9.0", False),
        ("sm_90", "9.0", True),
    ],
)
def test_machine_code_runs_on_its_major_and_at_least_its_minor_capability(
    arch: str, capability: str, runs: bool
) -> None:
    assert (misfit(architecture(arch), Gpu("a:1", "GPU", capability)) is None) is runs


def test_first_server_says_which_gpu_others_must_have() -> None:
    gpu = Gpu("b:1", "NVIDIA A10", "8.6")
    assert misfit(architecture("sm_80"), gpu, "NVIDIA A100") == (
        "has the GPU NVIDIA A10, whose times cannot be compared with those of the NVIDIA A100 of "
        "the first server"
    )


def pretend(monkeypatch: pytest.MonkeyPatch, old: list[str]) -> None:
    """Let servers have GPUs: some an older one; candidates run on their CPUs."""
    require_fit = run._Fleet.require_fit

    def with_gpu(fleet: run._Fleet, gpu: Gpu) -> None:
        facts = ("NVIDIA A100", "8.0") if gpu.server in old else ("NVIDIA H200", "9.0")
        require_fit(fleet, Gpu(gpu.server, *facts))

    monkeypatch.setattr(run._Fleet, "require_fit", with_gpu)
    ready = Client._ready

    def fitting(client: Client, job: Any) -> None:
        ready(client, job)
        assert client.gpu is not None
        client.fleet.require_fit(client.gpu)

    # Of candidates for the CPU nobody asks whether a server fits.
    monkeypatch.setattr(Client, "_ready", fitting)


def test_server_with_another_gpu_gets_no_trial_and_is_warned_of_once(
    farm: Farm,
    shelf: Shelf,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    unfit, left = farm.tracker.servers()
    pretend(monkeypatch, [unfit])
    runner = on_cpus(farm, 10)
    warning = (
        f"RPC server {unfit} is not used: it has the GPU NVIDIA A100 of compute capability 8.0, "
        "and machine code for sm_90a runs on 9.0."
    )
    try:
        for _ in range(2):
            measured = results(runner, shelf.artifacts(*["sleepy"] * 2))
            assert {one.server for one in measured if one.verified} == {left}
            assert all(one.verified for one in measured)
    finally:
        runner.close()
    said = [record.message for record in caplog.records if "is not used" in record.message]
    assert said == [warning]


def test_trials_fail_in_a_sentence_where_no_server_fits(
    farm: Farm, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = farm.tracker.servers()
    pretend(monkeypatch, both)
    runner = on_cpus(farm, 10)
    measured = results(runner, shelf.artifacts("right", "right", "right"))
    runner.close()
    for one in measured:
        assert re.match(
            r"UnfitServerError: RPC server \S+ cannot run kernels for sm_90a: it has the GPU "
            r"NVIDIA A100 of compute capability 8\.0, ",
            one.error or "",
        )


def test_two_servers_share_a_run_and_one_may_die(
    farm: Farm, runner: RpcRunner, shelf: Shelf, built: list[str]
) -> None:
    both = set(farm.tracker.servers())
    # The servers shall be at work when one is killed, and clients take seconds to start.
    first: list[Measured] = []
    while {one.server for one in first} != both:
        first = results(runner, shelf.artifacts("sleepy", "sleepy"))
    assert all(one.verified and one.l2 == "rotated" for one in first)
    artifacts = [*shelf.artifacts("sleepy", "sleepy"), *built, *shelf.artifacts("wrong")]
    futures = runner.begin(artifacts)
    time.sleep(0.8)
    farm.kill_one()
    measured = [future.result() for future in futures]
    assert [one.error for one in measured[:-1]] == [None] * 6
    assert all(one.verified and one.times for one in measured[:-1])
    assert str(measured[-1].error).startswith("WrongResultError: 1,024 of 1,024 elements differ")
    (left,) = farm.tracker.servers()
    assert {one.server for one in measured[2:]} == {left}


def test_candidate_that_crashes_the_session_is_tried_twice_and_the_server_lives(
    farm: Farm, runner: RpcRunner, shelf: Shelf
) -> None:
    (server,) = farm.tracker.servers()
    abort, right = results(runner, shelf.artifacts("abort", "right"))
    assert abort.error == (
        f"ServerLostError: The connection to {server} was lost while this candidate ran; if that "
        "happens again, it crashes the server's process."
    )
    assert right.verified
    assert farm.tracker.servers() == [server]


def test_waiting_for_a_server_is_not_counted_and_hanging_is(
    farm: Farm, runner: RpcRunner, shelf: Shelf
) -> None:
    hang, right, sticky = results(runner, shelf.artifacts("hang", "right", "error"))
    assert hang.error == "TrialTimeoutError: It was ended after 8 seconds."
    # The server was busy with the session of the first for longer than a trial may take.
    assert right.verified
    assert sticky.error == "DeviceError: CUDA: an illegal memory access was encountered"


def test_session_serves_many_trials_and_ends_with_one_that_fails(
    farm: Farm, runner: RpcRunner, shelf: Shelf
) -> None:
    while len(farm.tracker.servers()) > 1:
        farm.kill_one()
        farm._wait(1)
    # The third writes into the input and is itself right: the fourth is tried in a fresh session.
    names = ["right", "right", "stray", "right", "one wrong", "right", "right"]
    measured = results(runner, shelf.artifacts(*names))
    assert [one.verified for one in measured] == [name != "one wrong" for name in names]
    opened = [one.phases.get("session", 0.0) > 0 for one in measured if one.verified]
    # One session for the first trials, one for the fourth; which slot goes on then is open.
    assert opened[1:4] == [False, False, True]
    worked = [one.phases for one in measured if one.verified]
    assert all(set(one) == {"wait", "session", "upload", "run"} for one in worked)
    assert all(one["wait"] >= 0 and one["run"] > 0 for one in worked)


def test_problem_is_sent_once_a_server(
    farm: Farm, runner: RpcRunner, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    results(runner, shelf.artifacts("right", "right"))
    sent: list[str] = []
    ask = run.ask

    def noting(pipe: Connection, function: Any, *args: Any, **more: Any) -> Any:
        sent.append(function.__name__)
        return ask(pipe, function, *args, **more)

    end_spare_sessions(runner)
    monkeypatch.setattr(run, "ask", noting)
    (measured,) = results(runner, shelf.artifacts("right"))
    assert measured.verified
    assert sent == ["gpu", "holds", "prepare", "library", "measure"]


def test_session_that_runs_no_trial_goes_to_the_client_that_waits_for_a_server(
    runner: RpcRunner,
) -> None:
    first, second = Client(runner.fleet), Client(runner.fleet)
    first.ready(None)
    process = first.ask(os.getpid)
    waits = threading.Thread(target=second.ready, args=(None,), daemon=True)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive()
    first.release()
    waits.join(10)
    assert second.ask(os.getpid) == process
    second.release()


def test_winner_is_verified_and_finalists_take_turns_on_one_server(
    farm: Farm, runner: RpcRunner, shelf: Shelf
) -> None:
    wrong = runner.verify(shelf.artifact("one wrong"))
    assert (wrong.error or "").startswith("WrongResultError")
    artifacts = [shelf.artifact("right"), shelf.artifact("slow")]
    measured = runner.in_turn(artifacts * 2)
    assert [one.verified for one in measured] == [True] * 4
    assert len({one.server for one in measured}) == 1


@pytest.mark.skipif(tvm.cuda(0).exist, reason="needs a machine without a CUDA GPU")
def test_server_without_a_gpu_is_refused_at_the_start(farm: Farm, runner: RpcRunner) -> None:
    end_spare_sessions(runner)
    with pytest.raises(TargetError) as error:
        tune("transpose", shape=(8, 8), trials=2, runner=f"rpc:{HOST}:{farm.port}:{KEY}")
    (server,) = farm.tracker.servers()
    assert str(error.value) == (
        f"RPC server {server} cannot run kernels for sm_90a: it has no CUDA GPU. Start one on a "
        "machine with such a GPU and its driver."
    )


def test_trackers_that_are_not_there_or_have_no_server_say_how_to_start_one(farm: Farm) -> None:
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    for where, said in (
        (farm.port, f"The RPC tracker at {HOST}:{farm.port} has no server with the key h200; start "
         "one by: python -m tvm_layout_ext.tune.measure.rpc.server --tracker "
         f"{HOST}:{farm.port} --key h200"),
        (port, f"There is no RPC tracker at {HOST}:{port} (connection refused); start one by: "
         f"python -m tvm.exec.rpc_tracker --host 0.0.0.0 --port {port} --port-end {port + 1}"),
    ):  # fmt: skip
        with pytest.raises(NoServerError) as error:
            RpcRunner(doubling_task(), HOST, where, "h200")
        assert str(error.value) == said
    with pytest.raises(NoServerError, match="has no server with the key h200"):
        Tracker(HOST, farm.port, "h200", patience=0.5).next_free()


def test_servers_that_are_all_gone_fail_the_trials_in_a_sentence(
    farm: Farm, runner: RpcRunner, shelf: Shelf
) -> None:
    while farm._servers:
        farm.kill_one()
    farm._wait(0)
    runner.fleet.tracker = dataclasses.replace(runner.fleet.tracker, patience=0.5)
    left, other = results(runner, shelf.artifacts("right", "right"))
    assert left.error == other.error
    assert (left.error or "").startswith(
        f"NoServerError: The RPC tracker at {HOST}:{farm.port} has no server with the key {KEY}; "
    )


@pytest.mark.parametrize(("options", "warns"), [([], False), (["--host", "10.0.0.5"], True)])
def test_server_listens_on_this_machine_alone_unless_told(
    options: list[str],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(server, "serve_rpc", lambda _, host, **__: heard.append(host))
    monkeypatch.setattr(server, "_Sessions", lambda _: SimpleNamespace(serve=None))
    serve(["--tracker", "a:9190", "--key", "h200", *options])
    assert heard == ["10.0.0.5" if warns else "127.0.0.1"]
    assert ("whoever reaches it can run code" in caplog.text) is warns


def test_addresses_that_cannot_be_are_refused() -> None:
    for port in (0, 65536):
        with pytest.raises(TargetError, match=f"Port {port} of the RPC tracker is not one of 1 to"):
            Tracker(HOST, port, "key")
    for address in ("nowhere", "host:", ":9190", "host:port"):
        with pytest.raises(TargetError, match="A tracker's address is HOST:PORT, not "):
            serve(["--tracker", address, "--key", "h200"])


@pytest.mark.parametrize(
    ("words", "token", "lets_in"),
    [
        ([], "", True),
        (["-timeout=3"], "", True),
        (["-token=open"], "open", True),
        (["-timeout=3", "-token=open"], "open", True),
        (["-token=opens"], "open", False),
        ([], "open", False),
        (["-token=open"], "", False),
    ],
)
def test_a_token_lets_in(words: list[str], token: str, lets_in: bool) -> None:
    assert allowed(words, token) is lets_in


def test_a_token_of_two_words_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "two words")
    with pytest.raises(TargetError, match="a token is one word"):
        shared()


def test_a_server_with_a_token_serves_only_who_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "sesame")
    farm = Farm(1, forked=False)
    try:
        client = Client(run._Fleet(farm.tracker, architecture("sm_90a")))
        name = client.open(farm.tracker.next_free()).name
        assert name
        client.end()
        monkeypatch.setenv(VARIABLE, "simsim")
        free = farm.tracker.next_free()
        with pytest.raises(ServerLostError, match=f"or has another {VARIABLE}"):
            client.open(free)
        client.end()
        monkeypatch.setenv(VARIABLE, "sesame")
        assert client.open(farm.tracker.next_free()).name == name
        client.end()
    finally:
        farm.close()
