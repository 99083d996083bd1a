"""The records in ``tuning_logs`` are read whole, and their winners still build as recorded."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext.tune import Log, Record
from tvm_layout_ext.tune.apply.replay import best_records
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import make_task

_LOGS = Path(__file__).parents[3] / "tuning_logs"
_READING = Log(_LOGS).read()
_BEST = best_records(_READING.records)


def test_no_line_is_skipped() -> None:
    assert _READING.warning is None
    lines = [line for path in _LOGS.glob("*.jsonl") for line in path.read_text().splitlines()]
    # A finalist's second line takes the place of its first.
    assert {record.id for record in _READING.records} == {json.loads(line)["id"] for line in lines}
    assert len(lines) - len(_READING.records) <= sum(r.kind == "finalist" for r in _READING.records)


def test_every_record_was_measured_on_a_named_gpu() -> None:
    for record in _READING.records:
        assert record.runner == "cuda"
        assert record.device.startswith("NVIDIA")
        assert record.times or record.status == "error"
        assert record.versions["driver"]


def test_rates_are_of_the_work_that_operators_say() -> None:
    """A gather's said 224% of the memory's rate: its least traffic was that of the whole table."""
    for record in _READING.records:
        if record.median is None:
            continue
        work, operator = record.workload, find_operator(record.workload.operator)
        traffic, flops = operator.traffic(work.shape, work.dtype), operator.flops(work.shape)
        assert record.gbps == pytest.approx(traffic / record.median / 1e9), work
        assert record.tflops == pytest.approx(flops / record.median / 1e12), work


#: What is counted otherwise than when they were recorded: nvcc joins neighbours in shared memory
#: and loads an index once, a gather reads the rows that it picks rather than the table, threads of
#: elementwise take several vectors of a row, and those of a pad one more where its row ends.
_SINCE = {
    "transpose": {"wavefronts"},
    "stencil": {"wavefronts"},
    "gather_rows": {"memory", "requests", "sectors", "ideal_sectors", "sectors_per_request"},
    "elementwise": {"blocks", "resident"},
    "pad": {"sectors", "sectors_per_request"},
}


def _whole(record: Record) -> Any:
    """A record, in whole runs alone if its inputs take 10 seconds."""
    marks = [pytest.mark.whole] * (record.workload.shape == (8192, 8192, 8192))
    return pytest.param(record, marks=marks, id=str(record.workload).replace(" ", "-"))


@pytest.mark.matrix
@pytest.mark.parametrize("record", [_whole(record) for record in _BEST])
def test_the_winner_still_has_the_recorded_counters(record: Record) -> None:
    work = record.workload
    task = make_task(work.operator, work.shape, work.dtype, record.seed)
    task.operator.check_config(record.config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shared, counters = count(task, record.config)
    assert shared == record.smem_bytes
    assert record.conflict_model is not None
    # Both are made of them by formulas that have changed since.
    changed = _SINCE.get(work.operator, set())
    names = set(record.conflict_model) - {"cost", "chain"} - changed
    assert {name: counters[name] for name in names} == {
        name: record.conflict_model[name] for name in names
    }


def test_counters_of_column_sums_are_of_the_whole_shape() -> None:
    """With columns cut short there were more slices of rows, and a quarter of the sectors."""
    task = make_task("column_sum", (32768, 4096), "float16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, counters = count(task, task.space.default())
    # Beside those of the matrix: the sums, and partial sums that are stored and loaded again.
    assert 0 <= counters["sectors"] / (32768 * 4096 * 2 // 32) - 1 < 0.02


def test_the_tuned_fp32_transpose_has_no_bank_conflict() -> None:
    (record,) = (r for r in _BEST if str(r.workload) == "transpose 16384x16384 float32")
    assert record.conflict_model is not None
    assert record.conflict_model["bank_conflicts"] == 0
    assert record.conflict_model["sectors"] == record.conflict_model["ideal_sectors"]
