"""The measuring runner, on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tune.apply.test_programs import KNOBS, by_tiles, turned
from tvm_layout_ext.tune import tune
from tvm_layout_ext.tune.apply.programs import Programs
from tvm_layout_ext.tune.apply.replay import check, replay

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("operator", "shape", "dtype"),
    [
        ("transpose", (2048, 1000), "float32"),
        ("matmul", (250, 252, 244), "float32"),
    ],
)
def test_every_trial_is_measured_and_right(
    operator: str, shape: tuple[int, ...], dtype: str, tmp_path: Path
) -> None:
    result = tune(operator, shape=shape, dtype=dtype, trials=4, runner="cuda", log=tmp_path)
    assert [(record.status, record.error_text) for record in result.trials] == [("ok", None)] * 4
    assert result.best is not None
    assert result.best.kind == "finalist"
    for record in result.trials:
        assert len(record.times) > 1
        assert record.median is not None
        assert 0 < record.median < 1
        # A finalist that is not counted in time has none either.
        assert record.conflict_model is None or record.kind == "finalist"
        assert record.spill_bytes == 0
        assert record.l2 in ("rotated", "warm")
        assert record.verified_on == str(record.workload)
    again = replay(result.best, "cuda")
    # Nor are its counters compared then.
    assert again.same_counters or result.best.conflict_model is None
    assert again.measurement.verified_on == again.verified_on


def test_a_users_schedule_is_measured_again_from_its_log(tmp_path: Path) -> None:
    result = tune(turned(512), schedule=by_tiles, knobs=KNOBS, runner="cuda", log=tmp_path)
    assert result.best is not None
    operator = Programs(tmp_path).operator(result.best)
    again = replay(result.best, "cuda", operator)
    assert again.same_counters
    assert again.verified_on == str(result.best.workload)
    checked = check(result.best, "cuda", operator)
    assert (checked.failure, checked.default_failure) == (None, None)
    assert checked.ratio is not None
