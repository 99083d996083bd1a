"""Programs of a log's records, made again: of users' schedules from the database, and refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm
from tvm import s_tir

from tests.cli.test_cli import invoke
from tests.programs.mapped import computed
from tests.tune.helpers import by_threads, make_record
from tvm_layout_ext import te
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.report.page import workloads
from tvm_layout_ext.tune import Log, Record
from tvm_layout_ext.tune.apply.programs import Programs
from tvm_layout_ext.tune.apply.replay import best_records, check, replay
from tvm_layout_ext.tune.records.database import RECORDS, WORKLOADS
from tvm_layout_ext.tune.search.tune import tune
from tvm_layout_ext.tune.space.knobs import Config, knob
from tvm_layout_ext.tune.space.operator import Workload
from tvm_layout_ext.tune.space.task import make_task

KNOBS = [knob("offset", (0, 1)), knob("stages", (1, 3))]


def turned(extent: int = 64) -> tvm.tirx.PrimFunc:
    return computed((extent, extent), lambda a, i, j: a[j, i] * 2.0).mod["main"]


def by_tiles(sch: s_tir.Schedule, config: Config) -> None:
    """A block turns 32 rows, tile by tile through padded versions in shared memory."""
    block = sch.get_sblock("B")
    staged = sch.cache_read(block, 0, "shared")
    i, j = sch.get_loops(block)
    io, ii = sch.split(i, [None, 32])
    jo, ji = sch.split(j, [None, 32])
    sch.reorder(io, jo, ii, ji)
    sch.bind(io, "blockIdx.x")
    sch.compute_at(staged, jo)
    for outer, inner in ((ii, ji), sch.get_loops(staged)[-2:]):
        sch.bind(sch.split(outer, [None, 8])[1], "threadIdx.y")
        sch.bind(inner, "threadIdx.x")
    sch.storage_align(staged, 0, 0, 32, config["offset"])
    if config["stages"] > 1:
        sch.pipeline(jo, config["stages"])


def by_rows(sch: s_tir.Schedule, config: Config) -> None:
    """Fails with 3 threads, which are the default; samples something of its own, too."""
    if config["threads"] == 3:
        raise KeyError("three")
    width = sch.sample_categorical([1, 2], [0.5, 0.5], decision=1)
    i, j = sch.get_loops(sch.get_sblock("B"))
    sch.bind(i, "blockIdx.x")
    _, lane, vector = sch.split(j, [None, config["threads"], width])
    sch.bind(lane, "threadIdx.x")
    sch.vectorize(vector)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A function by a schedule of one's own, and another by the one that fits it."""
    folder = tmp_path_factory.mktemp("programs") / "log"
    own = tune(turned(), schedule=by_tiles, knobs=KNOBS, runner="simulate", log=folder)
    assert [record.status for record in own.trials] == ["ok"] * 4
    tune(turned(48), trials=2, runner="simulate", log=folder)
    return folder


def winner(log: Path) -> Record:
    (found,) = (one for one in best_records(Log(log).read().records) if one.program)
    return found


def copied(log: Path, to: Path, change: Any = None) -> Path:
    """A copy of a log, whose lines ``change`` may edit; None takes one out."""
    shutil.copytree(log, to)
    if change is not None:
        path = to / "trials.jsonl"
        lines = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines if line))
    return to


def rebuilt(log: Path, record: Record) -> tvm.IRModule:
    operator = Programs(log).operator(record)
    return make_task(operator, (), record.workload.dtype).module(record.config)


def scheduled(func: Any, schedule: Any, config: Config) -> tvm.IRModule:
    plain = func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)
    sch = s_tir.Schedule(tvm.IRModule({"main": plain}))
    schedule(sch, config)
    return sch.mod


def test_each_program_is_the_one_that_the_schedule_made(log: Path) -> None:
    records = [one for one in Log(log).read().records if one.program]
    assert len({one.program for one in records}) == 4
    for record in records:
        want = scheduled(turned(), by_tiles, record.config)
        tvm.ir.assert_structural_equal(rebuilt(log, record), want)


def test_replay_gives_the_recorded_counters_and_verifies(log: Path) -> None:
    record = winner(log)
    again = replay(record, operator=Programs(log / "trials.jsonl").operator(record))
    assert again.same_counters
    assert again.measurement.conflict_model == record.conflict_model
    assert again.verified_on == str(record.workload)
    ran = invoke("replay", log)
    assert ran.code == 0, ran.err
    assert ran.out.count("counters: the same as recorded") == 2
    alone = invoke("replay", log, "--id", record.id)
    assert (alone.code, alone.out.count("the same as recorded")) == (0, 1)


def test_check_holds_the_winner_against_trial_0(log: Path) -> None:
    record = winner(log)
    checked = check(record, operator=Programs(log).operator(record))
    trials = {one.trial: one for one in Log(log).read().records if one.program}
    assert checked.default is not None
    assert checked.default.conflict_model == trials[0].conflict_model
    assert checked.ratio == (record.score or 0) / (trials[0].score or 1) < 1
    ran = invoke("check", log)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("wins") == 2


def test_bench_and_best_know_its_program(log: Path) -> None:
    ran = invoke("bench", log)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count(" 1.000 ") == 2
    told = invoke("best", log, "--explain")
    assert told.code == 0, told.err
    assert f"--id {winner(log).id}" in told.out
    assert "A_shared" in told.out


def test_report_has_accesses_layouts_banks_and_pipeline(log: Path, tmp_path: Path) -> None:
    records = Log(log).read().records
    deep = {"offset": 1, "stages": 3}
    shown = [one for one in records if one.program and (one.trial == 0 or one.config == deep)]
    (view,) = workloads(shown, programs=Programs(log))
    after = view.after
    assert after is not None
    assert after.problem == ""
    (heads, accesses), _shared = after.tables
    reads = [dict(zip(heads, row, strict=True)) for row in accesses]
    (read,) = (r for r in reads if (r["buffer"], r["kind"]) == ("A_shared", "load"))
    assert read["conflict"] == "1-way"
    assert after.bank_conflicts == 0
    assert after.banks.startswith("<svg")
    assert "groups under way" in after.pipeline
    ran = invoke("report", log, "-o", tmp_path / "r.html")
    assert ran.code == 0, ran.err
    page = (tmp_path / "r.html").read_text()
    for part in ("The winner's memory accesses", "Lanes by bank"):
        assert part in page
    assert "cannot be" not in page


def test_a_default_that_failed_is_told_and_samples_of_the_user_stay(tmp_path: Path) -> None:
    knobs = [knob("threads", (3, 16, 32))]
    result = tune(turned(), schedule=by_rows, knobs=knobs, runner="simulate", log=tmp_path)
    assert [record.status for record in result.trials] == ["error", "ok", "ok"]
    for record in result.trials[1:]:
        want = scheduled(turned(), by_rows, record.config)
        tvm.ir.assert_structural_equal(rebuilt(tmp_path, record), want)
    ran = invoke("check", tmp_path)
    assert ran.code == 0, ran.err
    name = result.task.workload.operator
    assert "default fails" in ran.out
    kept = f"of {name} failed (KeyError); no program of it was kept."
    assert (
        f"no default to compare with: RecordError: Record {result.trials[0].id} {kept}" in ran.out
    )
    failed = invoke("replay", tmp_path, "--id", result.trials[0].id)
    assert failed.code == 2
    assert kept in failed.err
    page = tmp_path / "r.html"
    assert invoke("report", tmp_path, "-o", page).code == 0
    assert "KeyError" in page.read_text()


def test_a_default_that_the_log_has_lost_is_told(log: Path, tmp_path: Path) -> None:
    lost = copied(log, tmp_path / "log", lambda line: line if line["trial"] else None)
    record = winner(lost)
    checked = check(record, operator=Programs(lost).operator(record))
    assert (checked.default, checked.ratio, checked.warning) == (None, None, None)
    assert checked.default_failure == (
        f"RecordError: The log has no trial 0 of {record.workload.operator} to compare with."
    )


@pytest.mark.parametrize("command", ["replay", "check", "bench", "export"])
def test_another_program_than_recorded_is_refused_by_name(
    command: str, log: Path, tmp_path: Path
) -> None:
    def other(line: dict[str, Any]) -> dict[str, Any] | None:
        return line | {"program": "0123456789ab"} if line["program"] else None

    changed = copied(log, tmp_path / "log", other)
    record = winner(changed)
    ran = invoke(command, changed, *(["-o", tmp_path / "k"] if command == "export" else []))
    assert ran.code == 2
    assert ran.err == (
        f"Error: Record {record.id} of {record.workload.operator} is of program 0123456789ab, and "
        f"none of the 4 trials that the database in {changed} has of it is.\n"
    )


@pytest.mark.parametrize("file", [WORKLOADS, RECORDS])
@pytest.mark.parametrize("command", ["replay", "check", "bench", "export", "best", "report"])
def test_a_missing_file_of_the_database_is_named(
    command: str, file: str, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_LAYOUT_EXT_CACHE", str(tmp_path / "cache"))  # Nothing told before.
    alone = copied(log, tmp_path / "log", lambda line: line if line["program"] else None)
    (alone / file).unlink()
    out = {"export": ["-o", tmp_path / "k"], "report": ["-o", tmp_path / "r.html"]}
    ran = invoke(command, alone, *out.get(command, []))
    text = f"in the database beside the log, and its file {alone / file} is missing."
    if command == "best":
        assert (ran.code, "--id" in ran.out, text in ran.out) == (0, False, True)
    elif command == "report":
        assert (ran.code, text in (tmp_path / "r.html").read_text()) == (0, True)
    else:
        assert (ran.code, ran.err.count("\n")) == (2, 1)
        assert ran.err.endswith(f"{text}\n")


def test_what_the_database_does_not_hold_is_refused(log: Path, tmp_path: Path) -> None:
    record = winner(log)
    programs = Programs(log)
    foreign = replace(record, workload=Workload("B-00000000", (), "float32"))
    with pytest.raises(RecordError, match=r"function B-00000000, and the .* has no such function"):
        programs.operator(foreign)
    assert programs.operator(make_record()).name == "transpose"
    nameless = make_record(workload=Workload("mine", (8,), "float32"))
    with pytest.raises(RecordError, match="operator mine, whose code is neither in schedules/ nor"):
        programs.operator(nameless)
    with pytest.raises(RecordError, match="names no program, and its knobs are not those of the"):
        programs.operator(replace(record, program=None))
    broken = copied(log, tmp_path / "log")
    lines = (broken / RECORDS).read_text().replace("SampleCategorical", "Sampled")
    (broken / RECORDS).write_text(lines)
    with pytest.raises(RecordError, match=r"no such function \(6 of its lines are corrupt\)"):
        Programs(broken).operator(record)


def test_of_two_schedules_with_the_same_knobs_each_has_its_own(tmp_path: Path) -> None:
    def wide(sch: s_tir.Schedule, config: Config) -> None:
        by_rows(sch, config)
        sch.annotate(sch.get_sblock("B"), "mine", "wide")

    knobs = [knob("threads", (16, 32))]
    first = tune(turned(), schedule=by_rows, knobs=knobs, runner="simulate", log=tmp_path)
    again = tune(turned(), schedule=wide, knobs=knobs, runner="simulate", log=tmp_path)
    for result, schedule in ((first, by_rows), (again, wide)):
        for record in result.trials:
            want = scheduled(turned(), schedule, record.config)
            tvm.ir.assert_structural_equal(rebuilt(tmp_path, record), want)


def test_functions_that_differ_in_a_name_alone_are_two(tmp_path: Path) -> None:
    """The trace of one would not find the blocks of the other."""
    A = te.placeholder((64, 64), "float32", name="A")
    for name in ("first", "second"):
        func = te.create_prim_func([A, te.compute((64, 64), lambda i, j: A[j, i] * 2.0, name=name)])

        def schedule(sch: s_tir.Schedule, config: Config, block: str = name) -> None:
            sch.auto_coalesce(block, num_threads=config["threads"])

        tuned = tune(
            func, schedule=schedule, knobs=[knob("threads", (64, 128))], trials=2, log=tmp_path,
            runner="simulate",
        )  # fmt: skip
        assert tuned.best is not None
        assert Programs(tmp_path).operator(tuned.best).name == tuned.best.workload.operator


def test_a_trace_of_another_function_is_refused(tmp_path: Path) -> None:
    """A schedule may return one that does not start from the function it was given."""

    def elsewhere(_: s_tir.Schedule, config: Config) -> s_tir.Schedule:
        A = te.placeholder((64, 64), "float32", name="A")
        D = te.compute((64, 64), lambda i, j: A[j, i] * 2.0, name="D")
        plain = te.create_prim_func([A, D]).with_attr("global_symbol", "main")
        sch = s_tir.Schedule(tvm.IRModule({"main": plain}))
        sch.auto_coalesce("D", num_threads=config["threads"])
        return sch

    knobs = [knob("threads", (64,))]
    result = tune(turned(), schedule=elsewhere, knobs=knobs, runner="simulate", log=tmp_path)
    assert result.best is not None
    with pytest.raises(
        RecordError, match="none of the 1 trial, 1 of which TVM cannot replay, that"
    ):
        Programs(tmp_path).operator(result.best)


def test_arguments_of_several_types_are_explained(tmp_path: Path) -> None:
    """All were taken to be of the workload's type, which is the output's."""
    A = te.placeholder((256,), "float32", name="A")
    places = te.placeholder((64,), "int32", name="places")
    taken = te.compute((64,), lambda i: A[places[i]] + 1.0, name="taken")

    func = te.create_prim_func([A, places, taken])
    knobs = [knob("threads", (32, 64))]
    tune(
        func,
        schedule=partial(by_threads, block="taken"),
        knobs=knobs,
        runner="simulate",
        log=tmp_path,
    )
    ran = invoke("best", tmp_path, "--explain")
    assert ran.code == 0, ran.err
    loads = [line.split()[:4] for line in ran.out.splitlines() if " global  load " in line]
    assert {line[0] for line in loads} == {"A", "places"}
    assert invoke("replay", tmp_path).code == 0
