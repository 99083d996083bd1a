"""The commands on stored logs: compare, check, bench, export; and simulate."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_cli import invoke
from tests.tune.helpers import make_model, make_record
from tvm_layout_ext import cli
from tvm_layout_ext.cli.shared import runner_text
from tvm_layout_ext.errors import RecordError, TargetError
from tvm_layout_ext.tune.apply.replay import best_records
from tvm_layout_ext.tune.records.log import Log, Record
from tvm_layout_ext.tune.space.operator import Workload, find_operator

DEFAULT = find_operator("transpose").default_config()


def write(folder: Path, *records: Record) -> Path:
    Log(folder).prepare()
    for record in records:
        Log(folder).append(record)
    return folder


def timed(seconds: float, **changes: Any) -> Record:
    fields = {"runner": "cuda", "device": "NVIDIA H200", "times": (seconds,), "median": seconds}
    return make_record(**(fields | changes))


def transpose(trial: int = 0, cost: float = 100.0, **config: Any) -> Record:
    """A modelled trial of the real transpose."""
    return make_record(trial=trial, config=DEFAULT | config, conflict_model=make_model(cost))


def test_compare_tells_ratio_and_the_knobs_that_differ(tmp_path: Path) -> None:
    other = Workload("transpose", (128, 128), "float32")
    before = write(
        tmp_path / "a",
        timed(2e-6, config={"tile_i": 32, "pad": 1}),
        timed(4e-6, trial=1, config={"tile_i": 16, "pad": 1}),
        timed(1e-6, workload=other),
    )
    after = write(tmp_path / "b", timed(1.5e-6, config={"tile_i": 64, "pad": 1, "group": 4}))
    ran = invoke("compare", before, after)
    assert ran.code == 0, ran.err
    (row,) = [line for line in ran.out.splitlines() if line.startswith("transpose 64x64")]
    assert row.split()[-13:-8] == ["2.00", "us", "1.50", "us", "0.750"]
    assert row.endswith("tile_i 32 -> 64, group - -> 4")
    assert "1 faster, 0 slower, 0 the same (times within 0.5%)." in ran.out
    assert f"Only in {before}: transpose 128x128 float32 on NVIDIA H200." in ran.out


def test_compare_takes_servers_and_this_machine_alike_but_no_model(tmp_path: Path) -> None:
    here = write(tmp_path / "a", timed(2e-6), make_record())
    there = write(tmp_path / "b", timed(2.005e-6, runner="rpc", server="h:9090"))
    ran = invoke("compare", here, there)
    assert "0 faster, 0 slower, 1 the same" in ran.out
    assert f"Only in {here}: transpose 64x64 float32 on simulated GPU." in ran.out


def test_logs_with_nothing_in_common_are_refused_with_what_they_hold(tmp_path: Path) -> None:
    measured = write(tmp_path / "a", timed(2e-6))
    modelled = write(tmp_path / "b", make_record())
    ran = invoke("compare", measured, modelled)
    assert ran.code == 2
    assert ran.err == (
        f"Error: {measured} and {modelled} have no workload of the same device in common; they "
        "hold transpose 64x64 float32 on NVIDIA H200, and transpose 64x64 float32 on simulated "
        "GPU.\n"
    )


def test_check_warns_where_the_default_is_faster_now(tmp_path: Path) -> None:
    """The stored winner has unpadded rows: 32-way conflicts that the default has not."""
    record = transpose(read_vector=1, write_vector=1, align_factor=32, align_offset=0)
    ran = invoke("check", write(tmp_path, record), "--runner", "simulate")
    assert ran.code == 1
    assert "default is faster" in ran.out
    assert f"record {record.id} no longer wins: its modelled cost is " in ran.err


@pytest.mark.parametrize(("command", "code"), [("check", 1), ("bench", 0), ("replay", 0)])
def test_winners_of_own_schedules_are_named_and_the_others_still_run(
    command: str, code: int, tmp_path: Path
) -> None:
    """Nothing else in the log was looked at: one such record ended the command.

    A check that could not run a winner has not found that it still wins.
    """
    own = make_record(workload=Workload("B-d25a5806", (), "float32"))
    ran = invoke(command, write(tmp_path / "both", own, transpose()))
    assert ran.code == code, ran.err
    assert "transpose 64x64 float32" in ran.out
    assert f"Warning: Record {own.id} is of function B-d25a5806, whose program is in" in ran.err
    alone = invoke(command, write(tmp_path / "alone", own))
    assert alone.code == 2
    assert f"Error: Record {own.id} is of function B-d25a5806" in alone.err


def test_winner_is_one_of_the_latest_versions(tmp_path: Path) -> None:
    """The fastest of an older TVM was named, which no kernel of this one need reach."""
    old = transpose(cost=1.0)
    old = replace(old, versions=old.versions | {"tvm": "0.26"}, time="2026-01-01T00:00:00Z")
    new = replace(transpose(cost=2.0, align_offset=3), time="2026-02-01T00:00:00Z")
    for order in ((old, new), (new, old)):
        assert [one.score for one in best_records(order)] == [2.0]


@pytest.mark.parametrize("command", ["replay", "check"])
def test_modelled_records_run_on_their_own_architecture(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    module = import_module("tvm_layout_ext.tune.apply.replay")

    def make_task(*args: Any) -> Any:
        task = import_module("tvm_layout_ext.tune.space.task").make_task(*args)
        asked.append(task.architecture.name)
        return task

    monkeypatch.setattr(module, "make_task", make_task)
    ran = invoke(command, write(tmp_path, replace(transpose(), arch="sm_80")))
    assert ran.code == 0, ran.err
    assert asked == ["sm_80"]


def test_bench_tables_recorded_and_new_scores(tmp_path: Path) -> None:
    ran = invoke("bench", write(tmp_path, transpose(cost=1.0)))
    assert ran.code == 0, ran.err
    row = next(line for line in ran.out.splitlines() if line.startswith("transpose 64x64"))
    assert "simulate  modelled cost 1  modelled cost " in row
    assert row.rstrip().endswith("align_factor=8")  # the rest is on the next line


def test_bench_goes_on_after_a_winner_that_cannot_run(tmp_path: Path) -> None:
    stale = make_record(workload=Workload("transpose", (128, 128), "float32"))
    ran = invoke("bench", write(tmp_path, stale, transpose()))
    assert ran.code == 1
    assert "cannot be replayed: transpose has the knobs" in ran.err
    assert "transpose 64x64 float32" in ran.out


@pytest.mark.nvcc
def test_export_writes_library_header_and_loader(tmp_path: Path) -> None:
    log = write(tmp_path / "log", transpose())
    ran = invoke("export", log, "-o", tmp_path / "kernel")
    assert ran.code == 0, ran.err
    made = sorted(path.name for path in tmp_path.glob("*kernel*"))
    assert made == ["kernel.cu", "kernel.h", "kernel.py", "libkernel.so"]
    assert all(name in ran.out for name in made)


def test_export_compiles_for_the_architecture_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def stop(*_: object, target: Any, **__: object) -> None:
        asked.append(str(target.attrs["arch"]) if target else "the record's")
        raise RecordError("Stopped.")

    monkeypatch.setattr(import_module("tvm_layout_ext.tune.export.export"), "export", stop)
    for words in ((), ("--arch", "sm_80"), ("--arch", "sm_0")):
        ran = invoke("export", write(tmp_path, transpose()), "-o", tmp_path / "kernel", *words)
        assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert asked == ["the record's", "sm_80"]


def test_export_refuses_by_sentence(tmp_path: Path) -> None:
    other = Workload("transpose", (128, 128), "float32")
    log = write(tmp_path / "log", transpose(), make_record(workload=other))
    several = invoke("export", log, "-o", tmp_path / "kernel")
    assert (several.code, "has 2 winners, " in several.err) == (2, True)
    failed = make_record(status="error", error_class="X", error_text="y")
    none = invoke("export", write(tmp_path / "failed", failed), "-o", tmp_path / "kernel")
    assert (none.code, "has 0 winners, none; choose one" in none.err) == (2, True)
    if shutil.which("nvcc"):
        named = invoke("export", log, "--id", transpose().id, "-o", tmp_path / "no-name")
        assert (named.code, "'no-name' is no C identifier" in named.err) == (2, True)


_COPY = """
import tvm_layout_ext as tlx
from tvm_layout_ext import te
A = te.placeholder((64,), "float32", name="A")
B = te.compute((64,), lambda i: A[i] * 2.0, name="B")
s = te.create_schedule(B.op)
x, t = s[B].split(B.op.axis[0], factor=32)
s[B].bind(x, te.thread_axis("blockIdx.x"))
s[B].bind(t, te.thread_axis("threadIdx.x"))
args = [A, B]
"""


def test_simulate_prints_the_counters(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(_COPY)
    ran = invoke("simulate", tmp_path / "k.py")
    assert ran.code == 0, ran.err
    assert "2 blocks; 16 sectors (least 16)" in ran.out
    assert "global" in ran.out


_RACE = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def main(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (64,), "float32")
    B = T.match_buffer(b, (32,), "float32")
    for i in T.thread_binding(64, "threadIdx.x"):
        with T.sblock("B"):
            v = T.axis.spatial(64, i)
            B[v % 32] = A[v]
"""


def test_simulate_ends_with_code_1_at_a_hazard(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(_RACE)
    ran = invoke("simulate", tmp_path / "k.py")
    assert ran.code == 1, ran.err
    assert "race" in ran.out


def test_tracker_and_key_become_the_runner_that_tune_gets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def stop(*words: Any, **given: Any) -> None:
        asked.update(given)
        raise TargetError("Seen.")

    monkeypatch.setattr(import_module("tvm_layout_ext.tune.search.tune"), "tune", stop)
    words = ["tune", "transpose", "--shape", "8", "8", "--strategy", "replay", "--log", tmp_path]
    ran = invoke(*words, "--runner", "rpc", "--tracker", "gpu.local:9190", "--key", "h200")
    assert (ran.code, ran.err) == (2, "Error: Seen.\n")
    assert (asked["runner"], asked["strategy"]) == ("rpc:gpu.local:9190:h200", "replay")


def test_a_tracker_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    log = write(tmp_path, transpose())
    words = ["--runner", "rpc", "--tracker", "127.0.0.1:1", "--key", "h200"]
    ran = invoke("bench", log, *words)
    assert ran.code == 2
    assert ran.err.startswith("Error: There is no RPC tracker at 127.0.0.1:1 ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("tracker", "key", "needed"),
    [
        *((tracker, "h200", "--tracker HOST:PORT") for tracker in ("", "host", "host:x", ":1")),
        *(("host:1", key, "--key, a name without colons") for key in ("", "a:b")),
    ],
)
def test_a_tracker_is_host_and_port_and_a_key_a_name(tracker: str, key: str, needed: str) -> None:
    with pytest.raises(TargetError, match=f"needs {needed}"):
        runner_text("rpc", tracker, key)


def test_check_counts_a_winner_that_fails(tmp_path: Path) -> None:
    ran = invoke("check", write(tmp_path, make_record()))
    assert ran.code == 1
    assert "fails now: ScheduleError: transpose has the knobs " in ran.err


def test_ctrl_c_ends_any_command_with_130(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*_given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(import_module("tvm_layout_ext.tune.apply.replay"), "check", pressed)
    assert invoke("check", write(tmp_path, transpose())).code == 130
    monkeypatch.setattr(cli, "app", pressed)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130
