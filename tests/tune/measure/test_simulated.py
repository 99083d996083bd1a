"""The tuner on the simulated GPU: conflicts are found and removed, records replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tune.helpers import transpose_from
from tvm_layout_ext.report.comparison import comparison_table, rival, why
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.apply.replay import replay
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.model.cost import Counters
from tvm_layout_ext.tune.model.features import kernels_of
from tvm_layout_ext.tune.records.log import Record
from tvm_layout_ext.tune.search.tune import Result
from tvm_layout_ext.tune.space.task import make_task


@pytest.fixture(scope="module")
def from_conflicts(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A transpose whose default has no padding."""
    log = tmp_path_factory.mktemp("log")
    operator = transpose_from(align_offset=0)
    return tune(operator, shape=(512, 480), trials=16, runner="simulate", log=log)


def model(record: Record | None) -> dict[str, float]:
    assert record is not None
    assert record.conflict_model is not None
    return record.conflict_model


def test_tuner_finds_a_conflict_free_transpose_from_a_conflicted_default(
    from_conflicts: Result,
) -> None:
    assert model(from_conflicts.default)["bank_conflicts"] > 0
    assert model(from_conflicts.best)["bank_conflicts"] == 0
    assert from_conflicts.best is not None
    assert from_conflicts.best.verified_on == "transpose 512x480 float32"


def test_report_says_what_the_winner_saves(from_conflicts: Result) -> None:
    text = why(from_conflicts)
    assert "of the default" in text
    assert f"bank conflicts {model(from_conflicts.default)['bank_conflicts']:,} to 0." in text
    table = comparison_table(from_conflicts)
    assert table is not None
    assert table.title == "Winner against the default"


def test_default_that_wins_is_compared_with_the_last() -> None:
    result = tune("transpose", shape=(64, 64), trials=4, runner="simulate")
    if result.best == result.default:
        assert rival(result) == result.ranking[1]
        assert why(result).startswith("The default wins, no trial was better.")
    else:
        assert rival(result) == result.default


@pytest.mark.parametrize(("slices", "grids", "sampled"), [(4, [32, 128], 16), (1, [8], 8)])
def test_grids_of_both_kernels_of_a_split_sum_were_multiplied(
    slices: int, grids: list[int], sampled: int
) -> None:
    """32 blocks of products and 128 that add up were told as 1,024, and so was what they move."""
    task = make_task("gemm", (128, 256, 512), "float16")
    small = {"tile_m": 64, "tile_n": 64, "split_k": slices}
    config = task.operator.default_config() | small
    module = task.module(config)
    assert [kernel.grid for kernel in kernels_of(module)] == grids
    whole = simulate(module, *task.draw(0), target=cuda_target("sm_90a"), progress=False)
    assert whole.blocks == (sum(grids), sum(grids))
    assert [(one.sampled, one.blocks) for one in whole.launches] == [(n, n) for n in grids]
    counted = Counters.from_json(count(task, config)[1])
    assert (counted.blocks, counted.sampled) == (grids[0], sampled)
    for name in ("sectors", "ideal_sectors", "wavefronts", "barriers"):
        assert getattr(counted, name) == getattr(whole, name)
    assert counted.requests == sum(a.requests for a in whole.accesses if a.scope == "global")


def test_replay_from_the_json_line_gives_the_same_counters(from_conflicts: Result) -> None:
    assert from_conflicts.best is not None
    line = json.dumps(from_conflicts.best.to_json())
    again = replay(Record.from_json(json.loads(line)))
    assert again.same_counters
    assert again.measurement.smem_bytes == from_conflicts.best.smem_bytes
    assert again.verified_on == from_conflicts.best.verified_on


def test_two_runs_of_one_seed_agree(tmp_path: Path) -> None:
    def scores() -> list[tuple[str, float | None]]:
        result = tune("row_sum", shape=(64, 256), trials=4, runner="simulate", seed=5)
        return [(record.id, record.score) for record in result.trials]

    assert scores() == scores()
