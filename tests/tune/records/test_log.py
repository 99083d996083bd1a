"""Records and the log: round trip, corruption, concurrent writers, a full disk."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tune.helpers import make_model, make_record
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.tune.records.log import SCHEMA_VERSION, Log, Record
from tvm_layout_ext.tune.space.operator import Workload

_seconds = st.floats(min_value=1e-9, max_value=1e3)
_maybe_text = st.none() | st.text(max_size=40)
_OPTIONAL = {
    **dict.fromkeys(("median", "spread", "tflops", "gbps", "clock_mhz"), _seconds),
    **dict.fromkeys(("smem_bytes", "registers", "spill_bytes"), st.integers(0, 1 << 20)),
    **dict.fromkeys(
        ("verified_on", "error_class", "error_text", "git_id", "server"), st.text(max_size=40)
    ),
    "conflict_model": st.builds(make_model, _seconds),
    "protocol": st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=40)),
    "phases": st.dictionaries(st.text(max_size=8), _seconds),
}
_workloads = st.builds(
    Workload,
    st.text(min_size=1, max_size=12),
    st.lists(st.integers(1, 1 << 40), min_size=1, max_size=4).map(tuple),
    st.sampled_from(["float32", "int8"]),
)


@given(
    st.builds(
        Record,
        time=st.just("2026-01-01T00:00:00.000Z"),
        runner=st.sampled_from(["cuda", "rpc", "simulate"]),
        device=st.text(max_size=20),
        arch=st.just("sm_90a"),
        versions=st.dictionaries(st.text(max_size=8), _maybe_text, max_size=4),
        workload=_workloads,
        trial=st.integers(0, 1 << 30),
        config=st.dictionaries(
            st.text(max_size=8), st.integers(-(1 << 60), 1 << 60) | st.text(max_size=8), max_size=6
        ),
        status=st.sampled_from(["ok", "error"]),
        seed=st.integers(0, 1 << 60),
        times=st.lists(_seconds, max_size=5).map(tuple),
        kind=st.sampled_from(["trial", "finalist"]),
        l2=st.sampled_from([None, "warm", "flushed", "rotated"]),
        **{name: st.none() | values for name, values in _OPTIONAL.items()},
    )
)
def test_record_survives_its_json_line(record: Record) -> None:
    line = json.dumps(record.to_json(), allow_nan=False)
    assert "\n" not in line
    back = Record.from_json(json.loads(line))
    assert back == record
    assert back.id == record.id


def test_line_has_the_fields_users_were_promised() -> None:
    data = make_record().to_json()
    assert data["schema_version"] == SCHEMA_VERSION == 1
    assert set(data) == {
        "schema_version", "id", "time", "runner", "device", "arch", "versions", "workload", "trial",
        "config", "status", "times", "median", "spread", "tflops", "gbps", "smem_bytes",
        "registers", "conflict_model", "verified_on", "error_class", "error_text", "seed", "git_id",
        "kind", "l2", "protocol", "clock_mhz", "spill_bytes", "server", "phases", "program",
    }  # fmt: skip
    assert set(data["workload"]) == {"operator", "shape", "dtype", "hash"}


def test_id_depends_on_what_a_trial_is_and_not_on_its_outcome() -> None:
    record = make_record()
    assert replace(record, status="error", trial=7, time="later").id == record.id
    assert make_record(config={"tile_i": 64, "align_offset": 1}).id != record.id
    assert make_record(seed=1).id != record.id
    assert make_record(arch="sm_80").id != record.id
    assert make_record(versions={"tvm": "0.28.0", "package": "0.1.0"}).id != record.id


def test_later_record_of_a_trial_takes_the_place_of_the_earlier(tmp_path: Path) -> None:
    log = Log(tmp_path / "new" / "folder")
    log.prepare()
    first, second = make_record(), make_record(config={"tile_i": 64})
    for record in (first, second, replace(first, verified_on="all")):
        log.append(record)
    assert log.read().records == [replace(first, verified_on="all"), second]


@pytest.mark.parametrize(
    "line",
    ["{", "", "null", "[1]", '"text"', "{}", '{"schema_version": 1}', "\x00\x01",
     '{"schema_version": 1, "status": "perhaps"}'],
)  # fmt: skip
def test_corrupt_line_is_skipped_and_counted(tmp_path: Path, line: str) -> None:
    log, record = Log(tmp_path), make_record()
    log.append(record)
    with (tmp_path / "trials.jsonl").open("a") as file:
        file.write(line + "\n")
    reading = log.read()
    assert (reading.records, reading.corrupt) == ([record], bool(line))
    assert reading.warning == ("Skipped 1 corrupt line." if line else None)


_LATER = (
    "kind", "l2", "protocol", "clock_mhz", "spill_bytes", "server", "phases",
)  # fmt: skip


def test_line_from_before_the_later_fields_is_read(tmp_path: Path) -> None:
    old = {k: v for k, v in make_record().to_json().items() if k not in _LATER}
    (tmp_path / "trials.jsonl").write_text(json.dumps(old) + "\n")
    reading = Log(tmp_path).read()
    assert (reading.records, reading.corrupt) == ([make_record()], 0)
    assert reading.records[0].id == old["id"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, "object?") for name in ("config", "times", "workload", "status", "seed")),
        ("kind", "winner"), ("l2", "cold"), ("protocol", [1]), ("clock_mhz", "fast"),
        ("spill_bytes", 0.5), ("server", 3), ("phases", [1.0]),
        ("runner", "tpu"), ("conflict_model", {}), ("conflict_model", {"cost": 1.0}),
        ("conflict_model", make_model(1.0) | {"cost": "low"}), ("conflict_model", []),
        ("conflict_model", 3), ("config", {"tile": [1]}), ("config", {"tile": {}}),
        ("conflict_model", make_model(1.0) | {"requests": math.inf}),
        ("conflict_model", make_model(1.0) | {"cost": math.nan}),
        # Its hash does not fit.
        ("workload", make_record().to_json()["workload"] | {"shape": [64, 65]}),
    ],
)  # fmt: skip
def test_record_with_a_field_missing_or_of_another_kind_is_corrupt(
    tmp_path: Path, field: str, value: object
) -> None:
    data = make_record().to_json()
    lines = [data | {field: value}]
    if field not in _LATER:
        lines.append({k: v for k, v in data.items() if k != field})
    (tmp_path / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Log(tmp_path).read().corrupt == len(lines)


def test_score_of_a_measured_trial_is_its_median_and_of_a_modelled_one_its_cost() -> None:
    assert make_record(runner="rpc", median=2e-3, server="10.0.0.7:9090").score == 2e-3
    assert make_record(runner="cuda", median=1e-3).measured
    assert make_record(median=1e-3).score == 12.5
    assert not make_record().measured


def test_other_schema_version_is_skipped_and_counted_apart(tmp_path: Path) -> None:
    data = make_record().to_json() | {"schema_version": 2}
    (tmp_path / "trials.jsonl").write_text((json.dumps(data) + "\n") * 2 + "{\n")
    reading = Log(tmp_path).read()
    assert (reading.records, reading.corrupt, reading.foreign) == ([], 1, 2)
    assert reading.warning == (
        "Skipped 1 corrupt line and 2 records of a schema version other than 1."
    )


def test_append_after_a_torn_line_keeps_the_new_record(tmp_path: Path) -> None:
    log, record = Log(tmp_path), make_record()
    line = json.dumps(record.to_json())
    (tmp_path / "trials.jsonl").write_text(line[: len(line) // 2])
    log.append(record)
    reading = log.read()
    assert (reading.records, reading.corrupt) == ([record], 1)


def _write(folder: Path, name: str) -> None:
    for i in range(200):
        Log(folder).append(make_record(config={"writer": name, "i": i, "pad": "x" * 9000}))


def test_two_processes_append_without_losing_or_mixing_lines(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    writers = [forks.Process(target=_write, args=(tmp_path, name)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    reading = Log(tmp_path).read()
    assert (len(reading.records), reading.corrupt) == (400, 0)
    for name in "ab":
        own = [r.config["i"] for r in reading.records if r.config["writer"] == name]
        assert own == list(range(200))


def test_short_write_leaves_the_log_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, real = Log(tmp_path), os.write
    log.append(make_record())
    before = (tmp_path / "trials.jsonl").read_bytes()
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]))
    with pytest.raises(RecordError, match=r"was not written to .*No space left on device"):
        log.append(make_record(seed=1))
    assert (tmp_path / "trials.jsonl").read_bytes() == before


def test_logs_that_cannot_be_made_or_read_are_one_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"^Cannot read a log at .*: No such file or directory\.$"
    ):
        Log(tmp_path / "none").read()
    with pytest.raises(RecordError, match=r"holds no \*\.jsonl file"):
        Log(tmp_path).read()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"^Cannot write a log in .*file/log: Not a directory\.$"):
        Log(tmp_path / "file" / "log").prepare()


def test_not_a_number_cannot_get_into_a_log(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        Log(tmp_path).append(make_record(median=math.nan))
