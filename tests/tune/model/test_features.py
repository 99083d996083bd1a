"""Features and the latency model: right numbers where they are known, and the right direction."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from tests.programs.mapped import computed
from tvm_layout_ext.analysis.kernel_facts import KernelFacts
from tvm_layout_ext.gpu.measured import H200
from tvm_layout_ext.tune.measure.simulated import count
from tvm_layout_ext.tune.model.cost import CostTerms
from tvm_layout_ext.tune.model.costs import costs
from tvm_layout_ext.tune.model.features import FEATURES, features, kernels_of
from tvm_layout_ext.tune.model.latency import chain, terms
from tvm_layout_ext.tune.space.task import Task, make_task

GEMM = ("gemm", (1024, 1024, 1024), "float16")


def candidate(name: str, shape: tuple[int, ...], dtype: str, **changes: Any) -> tuple[Task, Any]:
    task = make_task(name, shape, dtype)
    return task, task.operator.default_config() | changes


def kernel_of(name: str, shape: tuple[int, ...], dtype: str, **changes: Any) -> KernelFacts:
    task, config = candidate(name, shape, dtype, **changes)
    (kernel,) = kernels_of(task.module(config))
    return kernel


def modelled(name: str, shape: tuple[int, ...], dtype: str, **changes: Any) -> float:
    task, config = candidate(name, shape, dtype, **changes)
    return costs(task, config).seconds


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        GEMM,
        ("transpose", (1024, 1024), "float32"),
        ("row_sum", (1024, 4096), "float16"),
        ("column_sum", (4096, 1024), "float16"),
        ("matmul", (256, 256, 256), "float32"),
        ("stream_reduce", (512, 4096), "float16"),
        ("elementwise", (1024, 1024), "float32"),
    ],
)
def test_every_feature_is_a_finite_number(name: str, shape: tuple[int, ...], dtype: str) -> None:
    task, config = candidate(name, shape, dtype)
    module = task.module(config)
    values = features(task, config, module)
    assert tuple(values) == FEATURES
    assert all(math.isfinite(value) for value in values.values())
    assert 0 < costs(task, config, module).seconds < 1


# nvcc joins four stores of a row that begins at a multiple of 16 bytes, and two where it is of 8.
@pytest.mark.parametrize(("offset", "conflicts", "joined"), [(0, 8, 6144), (1, 1, 0), (2, 2, 2048)])
def test_conflicts_of_a_transpose_are_the_simulated_ones(
    offset: int, conflicts: int, joined: int
) -> None:
    task, config = candidate("transpose", (256, 256), "float32", align_offset=offset)
    values = features(task, config, task.module(config))
    _, counted = count(task, config)
    total = 2 ** values["wavefronts"] - 1
    assert round(total * 2 ** values["grid"]) == counted["wavefronts"] + joined
    assert max(values["conflict_load"], values["conflict_store"]) == conflicts


@pytest.mark.parametrize("changes", [{}, {"read_vector": 1}, {"tile_i": 16, "write_vector": 2}])
def test_sectors_and_requests_of_a_transpose_are_the_simulated_ones(
    changes: dict[str, int],
) -> None:
    task, config = candidate("transpose", (256, 256), "float32", **changes)
    (kernel,) = kernels_of(task.module(config))
    _, counted = count(task, config)
    world = [use for use in kernel.uses if use.site.scope == "global"]
    assert sum(use.requests for use in world) * kernel.grid == counted["requests"]
    assert sum(use.total for use in world) * kernel.grid == counted["sectors"]


@pytest.mark.parametrize(("tile_j", "torn"), [(16, 1.0), (32, 0.0), (64, 0.0)])
def test_loads_of_half_a_line_tear_it(tile_j: int, torn: float) -> None:
    changes = {"tile_j": tile_j, "threads": 128, "read_vector": 2, "write_vector": 2}
    kernel = kernel_of("transpose", (256, 256), "float32", **changes)
    assert kernel.grid * kernel.torn == torn * 256 * 256 * 4 / 32


def test_what_the_cost_knows_beside_counts() -> None:
    task, config = candidate(*GEMM, stages=3)
    known = costs(task, config).known
    # 64 tiles of 128 x 128; registers leave room for two.
    assert known["products"] == 2 * 1024**3
    assert (known["steps"], known["resident"]) == (32, 2)
    assert known["memory"] == 3 * 1024 * 1024 * 2 // 32
    # Rows of A's tiles, 32 float16, are half a line; those of B's, 128, are two.
    assert known["torn"] == 64 * 32 * 128 * 64 / 32
    assert costs(task, {}, task.unscheduled).known == {}


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        # What TVM allocates: benchmarks/results/h200_gemm.json, "shared_bytes".
        ({"stages": 1}, 43008),
        ({"stages": 3}, 59392),
        ({"tile_k": 64, "stages": 3}, 98304),
        ({"tile_n": 256, "warps_n": 4, "tile_k": 64, "stages": 3}, 147456),
    ],
)
def test_shared_memory_of_a_gemm_is_what_is_allocated(changes: dict[str, int], shared: int) -> None:
    assert kernel_of(*GEMM, **changes).shared_bytes == shared


def test_facts_of_a_gemm() -> None:
    kernel = kernel_of(*GEMM, stages=3, prefetch=1)
    assert (kernel.grid, kernel.threads, kernel.stages, kernel.steps) == (64, 128, 3, 32)
    assert kernel.stage_bytes == 2 * (128 * 32 + 32 * 128)
    assert kernel.is_prefetched
    assert kernel.product_flops == 2 * 128 * 128 * 1024
    # 128 sums, two versions of 16 + 16 registers of fragments, and addresses.
    assert kernel.registers == 128 + 2 * 32 + 20


@pytest.mark.parametrize(
    ("dtype", "halves"),
    [
        ("float16", 1),
        ("bfloat16", 1),
        ("float32", 989 / 494),
        ("int8", 989 / 1979),
        # sm_90 widens them to half precision.
        ("float8_e4m3fn", 1),
    ],
)
def test_products_take_tensor_cores_as_long_as_their_type_asks(dtype: str, halves: float) -> None:
    kernel = kernel_of("gemm", (256, 256, 256), dtype, tile_k=64, stages=2, split_k=1)
    assert kernel.half_flops == pytest.approx(halves * kernel.product_flops)
    one = terms(kernel, 0.0, 3)
    assert one.arithmetic == pytest.approx(3 * halves * kernel.product_flops / H200.tensor)
    near = replace(H200, memory_latency=0)
    saved = chain(kernel, near) - chain(kernel, replace(near, tensor=2 * near.tensor))
    # Four warps, one a scheduler, each with a quarter of the products.
    assert saved == pytest.approx(halves * kernel.product_flops / H200.tensor / 2)


def test_fragments_conflict_without_a_swizzle() -> None:
    def degree(mode: str) -> float:
        uses = kernel_of(*GEMM, tile_k=64, swizzle=mode).uses
        return max(use.cost / use.least for use in uses if use.site.instruction)

    assert (degree("auto"), degree("pad"), degree("none")) == (1.0, 1.0, 8.0)


FLAT = ("transpose", (8192, 8192), "float32")
LARGE = ("gemm", (4096, 4096, 4096), "float16")


@pytest.mark.parametrize(
    ("work", "worse", "better"),
    [
        (LARGE, {"swizzle": "none"}, {"swizzle": "auto"}),
        (LARGE, {"stages": 1}, {"stages": 3}),
        (LARGE, {"tile_m": 64, "tile_n": 64}, {}),
        (FLAT, {"align_offset": 0}, {"align_offset": 2}),
        (FLAT, {"align_offset": 0}, {"align_offset": 1}),
    ],
)
def test_what_must_be_slower_is_modelled_slower(
    work: tuple[str, tuple[int, ...], str], worse: dict[str, Any], better: dict[str, Any]
) -> None:
    assert modelled(*work, **worse) > modelled(*work, **better)


def test_a_block_without_room_for_its_sums_spills() -> None:
    # ptxas gave 16 warps of 256 x 256 sums 128 registers a thread, and the sweep has 12 to 17 ms.
    wide = {"tile_m": 256, "tile_n": 256, "warps_m": 4, "warps_n": 4, "stages": 3}
    architecture = make_task(*LARGE).architecture
    assert kernel_of(*LARGE, **wide).spilled(architecture) == 64
    assert kernel_of(*LARGE).spilled(architecture) == 0
    assert modelled(*LARGE, **wide) > 2 * modelled(*LARGE)


def test_a_wave_more_costs_time_and_a_fuller_one_does_not() -> None:
    kernel = kernel_of(*GEMM)
    one, two = terms(kernel, 0.0, 1), terms(kernel, 0.0, 2)
    assert two.cycles >= one.cycles
    assert two.latency == one.latency
    # 128 x 128 tiles: 128 blocks are less than a wave, 136 of them are not more than another.
    few, full, more = (modelled("gemm", (m, 2048, 1024), "float16") for m in (512, 1024, 8192))
    assert few <= full < more


def test_terms_are_the_longest_and_a_share_of_the_others() -> None:
    assert CostTerms(100.0, 10.0, 0.0, 50.0, exposed=0.2).cycles == 100.0 + 0.2 * 10.0
    assert CostTerms(100.0, 10.0, 0.0, 500.0, exposed=0.2).cycles == 500.0 + 0.2 * 10.0


def test_a_module_without_blocks_has_no_kernel() -> None:
    task = make_task("transpose", (64, 64), "float32")
    values = features(task, task.operator.default_config(), task.unscheduled)
    assert values["grid"] == values["traffic"] == 0.0
    assert costs(task, {}, task.unscheduled).seconds == math.inf


def test_a_block_that_is_mapped_when_lowered_counts_as_it_will_be() -> None:
    sch = computed((256, 256), lambda a, i, j: a[i, j] + a[j, i])
    assert sch.auto_coalesce("B").text.startswith("when the program is lowered")
    (kernel,) = kernels_of(sch.mod)
    assert (kernel.grid, kernel.threads) == (16, 512)


@pytest.mark.costly
@pytest.mark.parametrize("slices", [1, 4])
def test_a_long_sum_is_counted_at_two_lengths(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product of 1x1x65,537 was simulated for two minutes a configuration."""
    module = import_module("tvm_layout_ext.tune.model.costs")
    monkeypatch.setattr(module, "COUNTED_EXTENT", 64)
    task, config = candidate("matmul", (1, 1, 64 * 6 + 9), "float32", split_k=slices)
    ran: list[tuple[int, ...]] = []
    scheduled = Task.module

    def noted(self: Task, config: Any, shape: Any = None) -> Any:
        ran.extend([shape] if shape else [])
        return scheduled(self, config, shape)

    monkeypatch.setattr(Task, "module", noted)
    whole = costs(task, config).counters
    monkeypatch.setattr(module, "_MOST_TURNS", 0)
    assert costs(task, config).counters == whole
    assert ran == [task.shape, (1, 1, 64 + 9), (1, 1, 128 + 9)]
