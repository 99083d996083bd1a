"""Slices and clusters of the tensor-core GEMM: its space, its default, its forecast."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.schedules.running import H200
from tests.schedules.test_generic import linear, task_of
from tvm_layout_ext import cuda_target
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.schedules._split_k import best_slices, cycles, workspace_bytes
from tvm_layout_ext.tune import operator_of
from tvm_layout_ext.tune.export.launches import host_plan
from tvm_layout_ext.tune.model.costs import costs
from tvm_layout_ext.tune.model.features import features, kernels_of
from tvm_layout_ext.tune.space.task import make_task

SM90, SM80 = architecture("sm_90a"), architecture("sm_80")
DEFAULT = gemm.OPERATOR.default_config()
SLIM = (128, 4096, 4096)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "slices", "by_warpgroups"),
    [
        ((4096, 4096, 4096), 1, 1),
        ((2048, 2048, 16384), 1, 1),
        ((1024, 4096, 4096), 1, 1),
        ((1024, 1024, 1024), 1, 1),
        ((512, 512, 256), 1, 1),
        # Tiles of 64x64 are 128 blocks of a result of which those of 128x128 are 32.
        ((128, 4096, 4096), 4, 2),
        ((16, 4096, 4096), 8, 1),
        ((64, 64, 65536), 8, 8),
    ],
)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_default_splits_where_few_tiles_have_long_sums(
    shape: tuple[int, int, int], slices: int, by_warpgroups: int, arch: str
) -> None:
    space = make_task("gemm", shape, "float16", target=cuda_target(arch)).space
    config = space.default()
    assert config["split_k"] == (by_warpgroups if arch == "sm_90a" else slices)
    # Pairs of blocks add their slices up in shared memory.
    assert config["cluster"] == (2 if arch == "sm_90a" and by_warpgroups == 2 else 1)
    assert config in space.legal


def test_slices_are_chosen_by_the_busiest_multiprocessor() -> None:
    """32 tiles of 128 steps: 4 slices are a block for each of 128 multiprocessors, 8 are two."""
    of = {slices: cycles(SLIM, DEFAULT, slices) for slices in (1, 2, 4, 8)}
    step = 2 * 128 * 128 * 32 / 2800
    assert of[1] == pytest.approx(128 * step + 900)
    moved = 2 * 4 * (4 * 128 * 4096) / (165 * 32)
    assert of[4] == pytest.approx(32 * step + 900 + 3400 + moved)
    assert min(of, key=lambda s: of[s]) == 4 == best_slices(SLIM, DEFAULT, (1, 2, 4, 8))
    # 8 slices have as many steps a multiprocessor as 4, and twice the workspace.
    assert of[8] - of[4] == pytest.approx(moved)
    assert best_slices(SLIM, DEFAULT, (1,)) == 1


def test_a_saving_of_less_than_a_tenth_is_none() -> None:
    saved = {k: cycles((128, 1024, k), DEFAULT, 2) / cycles((128, 1024, k), DEFAULT, 1)
             for k in range(128, 2048, 32)}  # fmt: skip
    assert any(0.9 < share < 1 for share in saved.values())
    for k, share in saved.items():
        assert (best_slices((128, 1024, k), DEFAULT, (1, 2)) == 2) == (share <= 0.9)


@pytest.mark.parametrize("shape", [SLIM, (16, 4096, 4096), (1000, 1000, 3000)])
def test_no_slices_or_clusters_are_legal_where_whole_sums_are_not(
    shape: tuple[int, int, int],
) -> None:
    """What the space relies on when it asks about them only beside legal configurations."""
    rng = random.Random(4)
    plain = {"split_k": 1, "cluster": 1}
    for _ in range(4000):
        config = {knob.name: rng.choice(knob.values) for knob in gemm.KNOBS}
        if gemm.OPERATOR.refuse(shape, "float16", config, SM90) is None:
            assert gemm.OPERATOR.refuse(shape, "float16", config | plain, SM90) is None


def test_one_slice_and_no_cluster_are_the_schedule_without_the_knobs() -> None:
    task = make_task("gemm", (256, 256, 256), "float16")
    older = {name: v for name, v in DEFAULT.items() if name not in ("split_k", "cluster")}
    task.operator.check_config(older)
    assert task.module(older).script() == task.module(DEFAULT).script()


def test_forecast_falls_with_slices_of_a_slim_product_and_rises_of_a_full_one() -> None:
    task = make_task("gemm", SLIM, "float16")
    of = {s: costs(task, DEFAULT | {"split_k": s}).seconds for s in (1, 4)}
    assert of[4] < 0.7 * of[1]
    full = make_task("gemm", (4096, 4096, 1024), "float16")
    of = {s: costs(full, DEFAULT | {"split_k": s}).seconds for s in (1, 4)}
    assert of[4] > of[1]


def test_second_kernel_has_no_products_and_the_first_all() -> None:
    task = make_task("gemm", SLIM, "float16")
    config = DEFAULT | {"split_k": 4}
    module = task.module(config)
    first, second = kernels_of(module)
    assert first.grid * first.product_flops == 2 * 128 * 4096 * 4096
    assert first.grid == 4 * 32
    assert second.product_flops == 0
    (workspace,) = host_plan(module, H200).workspace
    assert workspace.bytes == workspace_bytes(SLIM, 4) == 4 * 4 * 128 * 4096
    values = features(task, config, module)
    assert values["grid"] == np.log2(128)
    assert (values["knob_9"], values["knob_10"]) == (np.log2(5), 1.0)


def test_a_function_that_is_tuned_has_the_knobs_and_the_default() -> None:
    task = task_of(operator_of(linear(64, 128, 2048)))
    config = task.space.default()
    assert config["split_k"] == 8
    text = task.module(config).script()
    assert text.count('thread="blockIdx.x"') == 2
