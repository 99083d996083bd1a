"""The database beside the log: TVM reads it, many write it, and nothing broken gets through."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
from pathlib import Path

import pytest
import tvm_ffi
from tvm.s_tir import meta_schedule as ms

from tests.tune.helpers import transpose_schedule
from tvm_layout_ext import cuda_target
from tvm_layout_ext.errors import RecordError
from tvm_layout_ext.tune.records.database import RECORDS, WORKLOADS, Database
from tvm_layout_ext.tune.records.tvm_record import Provenance

TARGET = cuda_target("sm_90a")
HERE = Provenance.here("cuda", "NVIDIA H200")


def _add(database: Database, extent: int = 64, tile: int = 32, seconds: float = 1e-3) -> bool:
    module, sch = transpose_schedule(extent, tile_i=tile)
    return database.append(module, sch.trace, [seconds], TARGET, HERE)


def _files(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in (WORKLOADS, RECORDS)]


def test_tvm_reads_what_was_appended_and_compiles_its_best(tmp_path: Path) -> None:
    database = Database(tmp_path)
    for extent in (64, 96):
        for tile, seconds in ((16, 3e-3), (32, 1e-3), (64, 2e-3)):
            assert _add(database, extent, tile, seconds)
    read = ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert len(read) == 6
    for extent in (64, 96):
        module, want = transpose_schedule(extent, tile_i=32)
        found = ms.tir_integration.compile_tir(read, module, TARGET)
        assert tvm_ffi.structural_equal(found.mod, want.mod)


def test_tvms_own_writer_and_ours_take_turns(tmp_path: Path) -> None:
    database = Database(tmp_path)
    _add(database, 64)
    module, sch = transpose_schedule(96)
    theirs = ms.database.JSONDatabase(work_dir=str(tmp_path))
    workload = theirs.commit_workload(module)
    theirs.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [2e-3], TARGET))
    assert _add(database, 96, 16)
    assert len((tmp_path / WORKLOADS).read_text().splitlines()) == 2
    reading = database.read()
    assert ([one.provenance for one in reading.records], reading.corrupt) == ([HERE] * 2, 1)


def test_same_trial_is_kept_once_and_another_one_beside_it(tmp_path: Path) -> None:
    assert _add(Database(tmp_path))
    assert not _add(Database(tmp_path), seconds=2e-3)
    assert _add(Database(tmp_path), tile=16)
    other = Provenance(HERE.tvm, "0.0.9", "cuda", HERE.device)
    module, sch = transpose_schedule(64, tile_i=32)
    assert Database(tmp_path).append(module, sch.trace, [1e-3], TARGET, other)
    assert len(Database(tmp_path).read().records) == 3


def test_origin_survives_the_target_tag() -> None:
    odd = Provenance("0.27.0", "0.1.0", "simulate", "GPU; sha=1")
    assert Provenance.from_tag(odd.tag()) == odd
    for tag in ("", "my tag", "layout_ext; tvm=1", "layout_ext; a=1; b=2; c=3; d=4"):
        assert Provenance.from_tag(tag) is None
    assert not odd.measured


@pytest.mark.parametrize(
    "line",
    ["", "null", "{}", "5", "garbage", "[0]", "[7,[[[],[]],[1.0],null,null]]", '[0,["trace"]]'],
)
def test_broken_record_is_skipped_and_counted(tmp_path: Path, line: str) -> None:
    database = Database(tmp_path)
    _add(database)
    with (tmp_path / RECORDS).open("a") as file:
        file.write(line + "\n")
    _add(database, tile=16)
    reading = database.read()
    assert (len(reading.records), reading.corrupt) == (2, 1)
    assert len(database.tvm()) == 2


def test_broken_computation_keeps_the_numbers_of_the_others(tmp_path: Path) -> None:
    database = Database(tmp_path)
    for extent in (64, 96, 128):
        _add(database, extent)
    lines = (tmp_path / WORKLOADS).read_text().splitlines()
    lines[1] = lines[1][:500]
    (tmp_path / WORKLOADS).write_text("\n".join(lines) + "\n")
    assert database.read().corrupt == 2
    read = database.tvm()
    assert len(read) == 2
    for extent, there in ((64, True), (96, False), (128, True)):
        module, want = transpose_schedule(extent, tile_i=32)
        found = ms.tir_integration.compile_tir(read, module, TARGET)
        assert (found is not None) == there
        assert found is None or tvm_ffi.structural_equal(found.mod, want.mod)
    assert _add(Database(tmp_path), 96)
    assert len(database.tvm()) == 3


@pytest.mark.parametrize("what", ["trace", "seconds", "arguments"])
def test_altered_record_is_broken_though_it_is_json(tmp_path: Path, what: str) -> None:
    """A ``null`` deep in a trace crashes TVM's reader; the digest tells before TVM sees it."""
    database = Database(tmp_path)
    _add(database)
    line, entry = json.loads((tmp_path / RECORDS).read_text())
    if what == "trace":
        split = next(inst for inst in entry[0][0] if inst[0] == "Split")
        split[2] = [1, None]
    elif what == "seconds":
        entry[1] = [1e-6]
    else:
        entry[3][0][2] = [None]
    (tmp_path / RECORDS).write_text(json.dumps([line, entry]) + "\n")
    assert (database.read().records, database.read().corrupt) == ([], 1)
    assert len(database.tvm()) == 0


@pytest.mark.parametrize("name", [WORKLOADS, RECORDS])
def test_torn_last_line_is_cut_off_by_the_next_writer(tmp_path: Path, name: str) -> None:
    database = Database(tmp_path)
    _add(database)
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(before + before[: len(before) // 2])
    assert database.read().corrupt == 1
    assert _add(database, 96)
    assert _add(Database(tmp_path), 64, 16)
    reading = Database(tmp_path).read()
    assert (len(reading.records), reading.corrupt) == (3, 0)
    assert len(database.tvm()) == 3


def test_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    database = Database(tmp_path)
    _add(database)
    for name in (WORKLOADS, RECORDS):
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes().rstrip(b"\n"))
    assert _add(Database(tmp_path), 96)
    assert len(Database(tmp_path).tvm()) == 2


def _write(folder: Path, first: int, extents: tuple[int, ...]) -> None:
    made = {extent: transpose_schedule(extent, tile_i=32) for extent in extents}
    for number in range(first, first + 10):
        for module, sch in made.values():
            # Each number is a trial of its own: another unused annotation.
            mark = sch.copy()
            mark.annotate(mark.get_sblock("B"), "layout_ext.knob.number", number)
            Database(folder).append(module, mark.trace, [1e-3], TARGET, HERE)


def _numbers(folder: Path) -> list[tuple[int, int]]:
    found = []
    for one in Database(folder).read().records:
        insts = one.entry[0][0]
        number = next(i[1][1] for i in insts if i[2] == ["layout_ext.knob.number"])
        found.append((int(number), int(one.workload["main"].params[0].shape[0])))
    return found


def test_two_writers_agree_on_the_numbers_of_computations(tmp_path: Path) -> None:
    forks = multiprocessing.get_context("fork")
    writers = [
        forks.Process(target=_write, args=(tmp_path, first, extents))
        for first, extents in ((0, (64, 96)), (10, (96, 64)))
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=300)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len((tmp_path / WORKLOADS).read_text().splitlines()) == 2
    assert sorted(_numbers(tmp_path)) == [(i, e) for i in range(20) for e in (64, 96)]
    assert len(Database(tmp_path).tvm()) == 40


def test_limit_of_file_sizes_leaves_both_files_as_they_were(tmp_path: Path) -> None:
    """A full disk, as the kernel tells it: a short write, then an error."""
    database = Database(tmp_path)
    _add(database)
    before = _files(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for room in (10, 100):
            resource.setrlimit(resource.RLIMIT_FSIZE, (max(map(len, before)) + room, hard))
            with pytest.raises(RecordError, match=r"^A record was not written to .*as it was befo"):
                _add(database, 96)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert _files(tmp_path) == before
    assert _add(database, 96)
    assert len(database.tvm()) == 2


def test_record_that_does_not_fit_takes_its_computation_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, real, calls = Database(tmp_path), os.write, []
    _add(database)
    before = _files(tmp_path)

    def full(handle: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "full")
        return real(handle, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RecordError, match="No space left on device; it is as it was before"):
        _add(database, 96)
    assert _files(tmp_path) == before


def test_folder_that_cannot_be_and_seconds_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"^Cannot read a database in .*No such file"):
        Database(tmp_path / "none").read()
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match=r"^Cannot write a database in .*Not a directory"):
        Database(tmp_path / "file" / "log").prepare()
    with pytest.raises(RecordError, match="not all finite"):
        _add(Database(tmp_path), seconds=float("nan"))
    assert not (tmp_path / RECORDS).exists()
