"""Ready schedules that leave the mapping to auto_coalesce."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.sampling import SEED, pairwise
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.measure.verify import poison, require_close
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.task import Task

SM90 = architecture("sm_90a")
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "elementwise": [(1, 1), (33, 64), (64, 33), (100, 96)],
    "permute": [(1, 1, 1, 1), (2, 3, 4, 64), (2, 5, 3, 7)],
    "nchw_to_nhwc": [(1, 1, 1, 1), (2, 64, 6, 6), (1, 33, 5, 7)],
    "pad": [(1, 1), (62, 62), (31, 5)],
    "slice": [(1, 1), (64, 64), (33, 7)],
    "gather_rows": [(1, 1, 1), (50, 33, 64), (7, 20, 33)],
    "row_sum": [(1, 1), (64, 256), (33, 100)],
    "column_sum": [(1, 1), (256, 64), (100, 33)],
    "layer_norm": [(1, 1), (64, 256), (33, 100)],
    "rms_norm": [(1, 1), (64, 256), (33, 100)],
    "softmax": [(1, 1), (64, 256), (33, 100)],
}
CASES = pairwise(
    (
        (name, shape, dtype, config)
        for name, shapes in SHAPES.items()
        for shape in shapes
        for dtype in find_operator(name).dtypes
        for config in ({}, {"threads": 64}, {"vector_bytes": 4})
    ),
    key=lambda name, shape, *more: (name, SHAPES[name].index(shape), *more),
)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "shape", "dtype", "config"), CASES)
def test_result_is_numpys_and_no_hazard(
    name: str, shape: tuple[int, ...], dtype: str, config: dict[str, Any]
) -> None:
    operator = find_operator(name)
    task = Task(operator, shape, dtype, SM90, seed=SEED)
    inputs = task.draw(0)
    want = operator.reference(*inputs)
    module = task.module(operator.default_config() | config)
    report = simulate(module, *inputs, poison(want.shape, want.dtype.name))
    (output,) = report.outputs.values()
    require_close(output, want, operator.tolerance(shape, dtype))
    assert report.hazards == []


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("elementwise", (256, 256)),
        ("permute", (2, 64, 4, 128)),
        ("nchw_to_nhwc", (1, 256, 16, 16)),
        ("row_sum", (256, 2048)),
        ("column_sum", (2048, 512)),
    ],
)
def test_no_conflict_and_no_sector_too_many(name: str, shape: tuple[int, ...]) -> None:
    operator = find_operator(name)
    _, model = count(Task(operator, shape, "float16", SM90, seed=SEED), operator.default_config())
    assert model["bank_conflicts"] == 0
    assert model["sectors"] == model["ideal_sectors"]


def test_dtype_of_a_sum_is_single() -> None:
    tensors = find_operator("row_sum").compute((4, 4), "float16")
    assert np.dtype(str(tensors[-1].dtype)) == np.float32
