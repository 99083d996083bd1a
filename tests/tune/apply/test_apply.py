"""Compiling with records: which one is taken, what is skipped, and that it is said."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.s_tir import dlight
from tvm.s_tir import meta_schedule as ms
from tvm.tirx import compilation_pipeline

import tvm_layout_ext as tlx
from tests.programs.relaxed import relax_module
from tests.programs.running import gives
from tests.tune.helpers import make_record, transpose_schedule
from tvm_layout_ext import ApplyBest, RecordError, apply_best, cuda_target, decisions
from tvm_layout_ext.tune import Database, Log, Record, archive, find_operator, known_operators
from tvm_layout_ext.tune.measure import environment
from tvm_layout_ext.tune.records.tvm_record import Provenance, usable
from tvm_layout_ext.tune.space.candidate import traced
from tvm_layout_ext.tune.space.operator import Workload
from tvm_layout_ext.tune.space.recognise import recognise
from tvm_layout_ext.tune.space.task import make_task

TARGET = cuda_target("sm_90a")
HERE = Provenance.here("cuda", "NVIDIA H200")
_VERSIONS = environment.versions()


def measured(extent: int, seconds: float = 1e-3, **changes: Any) -> Record:
    """A measured float32 transpose by its default, with some knobs changed."""
    config = find_operator("transpose").default_config() | changes.pop("config", {})
    fields: dict[str, Any] = {
        "runner": "cuda",
        "device": "NVIDIA H200",
        "versions": _VERSIONS,
        "workload": Workload("transpose", (extent, extent), "float32"),
        "config": config,
        "times": (seconds,),
        "median": seconds,
        "conflict_model": None,
    }
    return make_record(**(fields | changes))


def scheduled(extent: int, **config: Any) -> tirx.PrimFunc:
    return transpose_schedule(extent, **config)[1].mod["main"]


def unscheduled(extent: int) -> tvm.IRModule:
    return transpose_schedule(extent)[0]


def is_as(func: tirx.PrimFunc, other: tirx.PrimFunc) -> bool:
    """Whether two functions do the same, whatever their attributes."""
    plain = (tirx.PrimFunc(one.params, one.body, one.ret_type) for one in (func, other))
    return bool(tvm_ffi.structural_equal(*plain))


def test_best_record_of_a_log_is_applied_with_the_functions_own_attributes(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for tile, seconds in ((16, 3e-3), (32, 1e-3), (64, 2e-3)):
        log.append(measured(96, seconds, config={"tile_i": tile, "threads": 64}))
    func = unscheduled(96)["main"].with_attr("global_symbol", "turn").with_attr("op_pattern", 2)
    applied = apply_best(tvm.IRModule({"turn": func}), tmp_path, TARGET)["turn"]
    assert is_as(applied, scheduled(96, tile_i=32, threads=64))
    assert applied.attrs["global_symbol"] == "turn"
    assert applied.attrs["op_pattern"] == 2
    assert applied.attrs["tirx.is_scheduled"]


def test_database_alone_is_enough_and_takes_any_index_width(tmp_path: Path) -> None:
    task = make_task("transpose", (96, 96), "float32")
    record = measured(96, config={"tile_i": 16, "threads": 64})
    assert archive(Database(tmp_path), task, record)
    assert not archive(Database(tmp_path), task, record)
    wide = tirx.IntImm("int64", 96)
    tensors = find_operator("transpose").compute((wide, wide), "float32")
    function = tlx.te.create_prim_func(tensors)
    assert not is_as(function, unscheduled(96)["main"])
    applied = apply_best(function, tmp_path, TARGET)
    assert is_as(
        applied["main"].without_attr("tirx.is_scheduled"), traced(task, record.config).mod["main"]
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"arch": "sm_80"}, "another GPU"),
        ({"versions": dict(_VERSIONS) | {"package": "0.0.9"}}, "another package"),
        ({"versions": dict(_VERSIONS) | {"tvm": "0.26.0"}}, "another TVM"),
    ],
)
def test_foreign_records_are_skipped_with_a_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any], why: str
) -> None:
    record = measured(96, **changes)
    Log(tmp_path).append(record)
    archive(Database(tmp_path), make_task("transpose", (96, 96), "float32"), record)
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        applied = apply_best(unscheduled(96), tmp_path, TARGET)
    assert is_as(applied["main"], unscheduled(96)["main"]), why
    assert "Skipped 2 records for other versions or GPUs than these and sm_90a" in caplog.text


def test_measured_goes_before_modelled_and_failed_trials_count_as_none(tmp_path: Path) -> None:
    database, module = Database(tmp_path), unscheduled(96)
    _, slow = transpose_schedule(96, tile_i=16, threads=64)
    _, fast = transpose_schedule(96, tile_i=32, threads=64)
    _, none = transpose_schedule(96, tile_i=64, threads=64)
    model = replace(HERE, runner="simulate", device="simulated GPU")
    database.append(module, slow.trace, [2e-3], TARGET, HERE)
    database.append(module, fast.trace, [1e-9], TARGET, model)
    database.append(module, none.trace, [1e10], TARGET, HERE)
    assert len(usable(database.read().records, "sm_90a")[0]) == 2
    assert is_as(apply_best(module, database, TARGET)["main"], slow.mod["main"])


def test_database_object_of_tvms_own_is_a_source() -> None:
    module = unscheduled(96)
    _, sch = transpose_schedule(96, tile_i=16, threads=64)
    memory = ms.database.MemoryDatabase()
    workload = memory.commit_workload(module)
    memory.commit_tuning_record(ms.database.TuningRecord(sch.trace, workload, [1e-3], TARGET))
    assert is_as(apply_best(module, memory, TARGET)["main"], sch.mod["main"])
    assert is_as(apply_best(module, memory, cuda_target("sm_80"))["main"], module["main"])


def test_nearest_legal_shape_is_taken_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(tmp_path)
    log.append(measured(64, config={"read_vector": 4, "write_vector": 4, "threads": 64}))
    log.append(measured(4096, config={"read_vector": 1, "write_vector": 1}))
    module = unscheduled(90)  # whose rows hold no whole vectors of four
    with decisions.collect() as told, caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        applied = apply_best(module, log, TARGET)
    assert is_as(applied["main"], scheduled(90, read_vector=1, write_vector=1))
    text = "No record of transpose 90x90 float32; the configuration of the nearest, transpose 4096"
    assert text in caplog.text
    assert [d.text.startswith(text) for d in told if d.maker == "ApplyBest"] == [True]
    value = np.random.default_rng(0).standard_normal((90, 90), np.float32)
    gives(applied, value, None, target=TARGET, B=value.T)
    kept = apply_best(module, log, TARGET, nearest=False)
    assert is_as(kept["main"], module["main"])


@pytest.mark.parametrize("name", known_operators())
def test_every_ready_operator_is_recognised(name: str) -> None:
    operator = find_operator(name)
    # Products of halves are gemm's and matmul's alike.
    others = {"transpose", "row_sum", "gemm_nt", *(["gemm"] if name == "gemm_nt" else [])}
    # Heads of queries are a multiple of those of keys.
    shape = tuple(256 >> index for index, _ in enumerate(operator.dims))
    shape = (4, 2, 1, 96, 128, 64) if name.startswith("ragged") else shape
    for dtype in operator.dtypes:
        func = operator.unscheduled(shape, dtype)["main"]
        found = recognise(func, name)
        assert found is not None
        assert found[1:] == (shape, dtype)
        assert all(recognise(func, other) is None for other in others - {name})


def test_context_replaces_what_tvm_compiles(tmp_path: Path) -> None:
    Log(tmp_path).append(measured(96, config={"tile_i": 16, "threads": 64}))
    stock = compilation_pipeline.PIPELINE_MAP["s_tir"], dlight.ApplyDefaultSchedule
    want = tvm.compile(transpose_schedule(96, tile_i=16, threads=64)[1].mod, target=TARGET)
    with ApplyBest(tmp_path) as best, ApplyBest(tmp_path, nearest=False) as inner:
        got = tvm.compile(unscheduled(96), target=TARGET)
    assert _source(got) == _source(want)
    assert [one.how for one in inner.applied] == ["recorded"]
    assert best.applied == []
    assert (compilation_pipeline.PIPELINE_MAP["s_tir"], dlight.ApplyDefaultSchedule) == stock


def test_context_leaves_with_an_error_and_leaves_scheduled_functions_alone(tmp_path: Path) -> None:
    Log(tmp_path).append(measured(96))
    stock = compilation_pipeline.PIPELINE_MAP["s_tir"]
    own = transpose_schedule(96, tile_i=16, threads=64)[1].mod
    want = _source(tvm.compile(own, target=TARGET))
    best = ApplyBest(tmp_path)

    def failing() -> None:
        with best:
            assert _source(tvm.compile(own, target=TARGET)) == want
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert [one.how for one in best.applied] == ["none"]
    assert compilation_pipeline.PIPELINE_MAP["s_tir"] is stock
    # Nobody maps it to threads now, so it has no device code.
    assert not tvm.compile(unscheduled(96), target=TARGET).mod.imports


def _source(executable: Any) -> str:
    return str(executable.mod.imports[0].inspect_source())


def turned_softmax(extent: int) -> tvm.IRModule:
    def build(x: Any) -> Any:
        return relax.op.nn.softmax(relax.op.permute_dims(x, [1, 0]))

    return relax_module(build, (extent, extent), dtype="float32")


def test_record_that_no_longer_fits_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Log(tmp_path).append(measured(96, config={"tile_i": 17}))
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        applied = apply_best(unscheduled(96), tmp_path, TARGET)
    assert is_as(applied["main"], unscheduled(96)["main"])
    assert "Knob tile_i of transpose cannot be 17" in caplog.text


def test_corrupt_lines_are_counted_and_nothing_to_read_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Log(tmp_path).append(measured(96))
    (tmp_path / "trials.jsonl").open("a").write("{\n")
    (tmp_path / "database_tuning_record.json").write_text("null\n")
    (tmp_path / "database_workload.json").write_text(json.dumps(["0", "AAAA"]) + "\n")
    with caplog.at_level(logging.WARNING, "tvm_layout_ext"):
        applied = apply_best(unscheduled(96), tmp_path, TARGET)
    assert is_as(applied["main"], scheduled(96))
    assert "Skipped 3 corrupt lines" in caplog.text
    with pytest.raises(RecordError, match="No such file"):
        ApplyBest(tmp_path / "none")
    with pytest.raises(RecordError, match="Cannot read records from a int"):
        apply_best(unscheduled(96), 3, TARGET)  # type: ignore[arg-type]
