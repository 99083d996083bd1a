"""The GEMM on Hopper: which tile it takes, when it falls back, and that it stays right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import tvm_layout_ext as tlx
from benchmarks.pingpong import program
from tests.programs import warpgroups as w
from tvm_layout_ext import decisions
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.schedules import _gemm_hopper as hopper
from tvm_layout_ext.schedules import conv2d, gemm, gemm_nt
from tvm_layout_ext.tune.model.costs import costs
from tvm_layout_ext.tune.space.operator import find_operator
from tvm_layout_ext.tune.space.space import Space
from tvm_layout_ext.tune.space.task import make_task

#: Tiles that convolutions have.
CONV_TILES = next(one for one in conv2d.KNOBS if one.name == "wgmma").values
SM90A, SM80 = architecture("sm_90a"), architecture("sm_80")


def default(
    shape: tuple[int, int, int], dtype: str = "float16", gpu: Any = SM90A, nt: bool = True
) -> dict[str, Any]:
    operator = (gemm_nt if nt else gemm).OPERATOR
    return Space(operator, shape, dtype, gpu).default()


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("shape", "tile", "slices"),
    [
        ((4096, 4096, 4096), "128x256", 1),
        # Eleven waves of 128x256 are filled to 0.948.
        ((4096, 11008, 4096), "128x208", 1),
        # 132 multiprocessors take 128 tiles at once.
        ((1024, 1024, 1024), "128x64", 1),
        ((1000, 3000, 2000), "128x192", 1),
        # Rows of 8,112 bytes tear lines: blocks copy for each other.
        ((4000, 4104, 4056), "128x208", 1),
        # 32 tiles of weights: slices add up in clusters.
        ((128, 4096, 14336), "128x64", 2),
    ],
)
def test_the_default_tile_fits_the_waves(
    shape: tuple[int, int, int], tile: str, slices: int
) -> None:
    # The two types of 16 bits have one rule.
    config = default(shape, "bfloat16" if slices > 1 else "float16")
    assert (config["wgmma"], config["split_k"]) == (tile, slices)
    torn = any(size * 2 % 128 for size in shape[2:])
    assert config["cluster"] == (2 if torn or slices > 1 else 1)


@pytest.mark.parametrize(
    ("shape", "after", "tile"),
    [
        # As measured (h100_pingpong.json): nine waves of 64x256 in turns, or five of 128x240.
        ((6304, 3072, 768), 16, "2x64x256"),
        ((6304, 3072, 768), 0, "2x192x112"),
        # Four whole waves; what follows keeps the other warpgroup from multiplying.
        ((4096, 4096, 1024), 16, "128x256"),
        ((4096, 4096, 4096), 0, "128x256"),
        # A tile a block, with nobody to take turns with.
        ((1024, 1024, 1024), 16, "128x64"),
    ],
)
def test_turns_are_taken_where_waves_fit_them(
    shape: tuple[int, int, int], after: float, tile: str
) -> None:
    assert hopper.fit(shape, "float16", SM90A, True, False, after)["wgmma"] == tile


def test_larger_tiles_in_turns_leave_no_registers_for_what_follows() -> None:
    for tile in ("2x128x144", "2x128x176", "2x192x112"):
        assert hopper.may_be_taken(tile, 0)
        assert not hopper.may_be_taken(tile, 1)
    assert hopper.may_be_taken("2x128x128", 16)


def test_what_follows_a_product_is_counted() -> None:
    found = {
        name: hopper.work_after(program((64, 64, 64), name), "product")
        for name in ("plain", "residual", "gelu")
    }
    assert found == {"plain": 0, "residual": 2, "gelu": 16}


@pytest.mark.parametrize(
    ("pixels", "channels", "found"),
    [
        # 40 tiles of 64x64 for 132 multiprocessors; clusters of four are 30 at once.
        (128, 1280, ("128x64", 4)),
        (512, 1280, ("128x160", 3)),
        # Ten tiles of 360 steps.
        (128, 2560, ("128x128", 8)),
        (8192, 1280, ("128x160", 1)),
        # Nine steps are short.
        (128, 64, ("64x64", 1)),
    ],
)
def test_slices_of_a_convolution_have_as_many_steps(
    pixels: int, channels: int, found: tuple[str, int]
) -> None:
    tile, slices = found
    config = hopper.fit_windows((pixels, 1280, 9 * channels), channels, "float16", True)
    assert config == {"wgmma": tile, "split_k": slices, "cluster": slices}


CUBE, LONG_K, LONG_N = (4096, 4096, 4096), (4096, 4096, 4100), (4096, 4100, 4096)


@pytest.mark.parametrize(
    ("nt", "shape", "dtype", "gpu", "tile", "why"),
    [
        (True, CUBE, "float16", SM80, "128x256", "sm_80 has no wgmma; sm_90a has."),
        (True, LONG_K, "float16", SM90A, "128x256", "Rows of A are 8200 bytes apart; "),
        # B of K x N has rows of N elements.
        (False, LONG_N, "float16", SM90A, "128x256", "Rows of B are 8200 bytes apart; "),
        (True, LONG_N, "float16", SM90A, "128x256", None),
        # Of 8 and 32 bits wgmma reads rows along K alone, and no 256 columns of integers.
        *[
            (False, CUBE, dtype, SM90A, "128x128", f"wgmma reads {dtype} only so.")
            for dtype in ("int8", "float8_e4m3fn", "float32")
        ],
        *[(True, CUBE, dtype, SM90A, "128x128", None) for dtype in ("int8", "float32")],
        (True, CUBE, "int8", SM90A, "128x256", "wgmma of int8 has no columns for a tile of "),
    ],
)
def test_what_has_no_wgmma_is_told(
    nt: bool, shape: tuple[int, int, int], dtype: str, gpu: Any, tile: str, why: str | None
) -> None:
    operator = (gemm_nt if nt else gemm).OPERATOR
    refusal = operator.check(shape, dtype, operator.default_config() | {"wgmma": tile}, gpu)
    assert refusal is None if why is None else refusal and why in refusal.text


def test_what_has_no_wgmma_stays_as_it_was() -> None:
    assert default(CUBE, gpu=SM80)["wgmma"] == "none"
    assert default(LONG_N, nt=False)["wgmma"] == "none"


def test_a_cluster_of_slices_takes_no_turns() -> None:
    operator = gemm_nt.OPERATOR
    config = operator.default_config() | {"wgmma": "2x128x128", "split_k": 2, "cluster": 2}
    refusal = operator.check((512, 512, 1024), "float16", config, SM90A)
    assert refusal is not None
    assert "slices in a cluster of 2 need blocks of one tile each" in refusal.text


def test_few_configurations_are_tried_and_all_can_be_lowered() -> None:
    legal = Space(gemm.OPERATOR, (2048, 2048, 1024), "float16", SM90A).legal
    found = [config for config in legal if config["wgmma"] != "none"]
    assert 1 <= len(found) <= 25
    moved = {(c["wgmma"], c["group"], c["split_k"], c["cluster"]) for c in found}
    assert len(moved) == len(found)


@pytest.mark.costly
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_columns_of_few_rows_go_to_the_rows_of_the_instruction(rows: int) -> None:
    tile = default((rows, 4096, 4096))["wgmma"]
    assert int(tile.partition("x")[0]) in (8, 16)
    assert_is_right((rows, 192, 328), True, {"wgmma": tile, "split_k": 2})


@pytest.mark.parametrize(
    ("shape", "nt", "tile", "cluster"),
    [
        # 120 tiles of 80 rows; of 128x160, 64 in two slices and a second kernel.
        ((200, 5120, 5120), True, "t80x128", 1),
        ((200, 5120, 5120), False, "t80x128", 1),
        # Two whole waves. Rows of B of 2,000 bytes tear lines, so that two blocks share them.
        ((5000, 1000, 8000), True, "t152x128", 1),
        ((5000, 1000, 8000), False, "t160x128", 2),
        # 29.2 us where 128x176 by clusters of two takes 35.6, cuBLAS 29.5; 28.2 for 38.4 and 28.7.
        ((1111, 2224, 3336), True, "t160x128", 2),
        ((1111, 2224, 3336), False, "t160x128", 2),
        ((4096, 4096, 4096), True, "128x256", 1),
        ((4096, 4096, 4096), False, "128x256", 1),
        # Rows of the result of 10,232 bytes are none of TMA's.
        ((200, 5116, 5120), True, "128x160", 1),
    ],
)
def test_ragged_rows_take_the_transpose(shape: Any, nt: bool, tile: str, cluster: int) -> None:
    config = default(shape, "bfloat16", nt=nt)
    assert config["wgmma"] == tile
    if tile in hopper.SWAPPED:
        assert (config["split_k"], config["cluster"]) == (1, cluster)
        assert hopper.fit(shape, "bfloat16", SM90A, nt, False)["wgmma"] not in hopper.SWAPPED
        assert gemm.fit(shape, "float16", {}, SM90A, nt, False, after=2)["wgmma"] == tile


def test_the_transpose_is_for_16_bits_and_tiles_alone() -> None:
    operator = gemm_nt.OPERATOR
    usual = operator.default_config() | {"wgmma": "t160x128"}

    def refused(dtype: str, **more: Any) -> str:
        found = operator.check((512, 512, 1024), dtype, usual | more, SM90A)
        return "" if found is None else found.text

    assert refused("float16") == refused("bfloat16") == ""
    assert "wgmma of int8 has no columns for a tile of t160x128" in refused("int8")
    assert "wgmma of float32 has no columns" in refused("float32")
    assert refused("float16", cluster=2) == ""
    usual["wgmma"] = "t152x128"
    assert "A cluster of 2 shares no tile of t152x128" in refused("float16", cluster=2)


def test_products_go_to_warpgroups_where_other_knobs_have_no_legal_default() -> None:
    """Tiles of 128x128 of mma.sync are not worth trying here, so that its default is another."""
    shapes = (640, 3072, 5056), (600, 3000, 5000), (3733, 336, 10968), (5428, 320, 6632)
    for nt, shape in zip((True, False, False, True), shapes, strict=True):
        config = default(shape, nt=nt)
        wished = hopper.fit(shape, "float16", SM90A, nt, False, may_swap=True)
        assert config | wished == config


@pytest.mark.parametrize(
    ("tile", "of_sums"),
    [("16x128", "128x16"), ("128x96", "128x96"), ("2x64x128", "64x128"), ("t88x128", "128x88")],
)
def test_names_of_tiles_stay_and_replay(tile: str, of_sums: str) -> None:
    shape, operator = (200, 512, 512), gemm_nt.OPERATOR
    config = operator.default_config() | {"wgmma": tile}
    with w.SM90A:
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    fresh = w.product(shape)
    sch.trace.apply_to_schedule(fresh, remove_postproc=False)
    tvm.ir.assert_structural_equal(fresh.mod, sch.mod)
    with decisions.collect() as made:
        tlx.lower(fresh, target=w.SM90A)
    assert any(f"on tiles of {of_sums}x64" in str(one) for one in made)


def test_the_transpose_is_tried_where_it_may_win() -> None:
    def tried(shape: tuple[int, int, int]) -> set[str]:
        legal = Space(gemm.OPERATOR, shape, "float16", SM90A).legal
        return {c["wgmma"] for c in legal} & set(hopper.SWAPPED)

    assert "t80x128" in tried((200, 5120, 5120))
    assert not tried((2048, 2048, 1024))


@pytest.mark.matrix
@pytest.mark.parametrize("tile", [*hopper.TILES, *hopper.SWAPPED])
def test_every_tile_fits_the_gpu(tile: str) -> None:
    for operator in (gemm.OPERATOR, gemm_nt.OPERATOR):
        config = operator.default_config() | {"wgmma": tile}
        with w.SM90A:
            sch = operator.schedule(operator.compute((512, 512, 512), "float16"), config)
        with decisions.collect() as made:
            tlx.lower(sch, target=w.SM90A)
        *turns, rows, columns = tile.removeprefix("t").split("x")
        is_turned = tile in hopper.SWAPPED
        of = f"{columns}x{rows}" if is_turned or int(rows) < 64 else f"{rows}x{columns}"
        assert any(f"on tiles of {of}x64" in str(one) for one in made)
        assert not is_turned or any("results stored by TMA" in str(one) for one in made)
        assert any("that multiply in turns" in str(one) for one in made) == bool(turns)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("nt", "slices", "tile"),
    [
        (True, 1, "128x96"),
        (False, 4, "64x64"),
        (True, 2, "2x64x128"),
        (True, 1, "t88x128"),
        (False, 1, "t248x128"),
        (False, 2, "t112x128"),
    ],
)
def test_results_of_the_operator_are_right(nt: bool, slices: int, tile: str) -> None:
    assert_is_right((136, 200, 520), nt, {"wgmma": tile, "split_k": slices})


@pytest.mark.costly
@pytest.mark.parametrize("nt", [True, False])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((136, 200, 520), "t88x128"),  # Blocks of a pair have 128 columns each, or nothing.
        ((310, 392, 200), "t160x128"),  # And 160 rows.
        ((100, 136, 72), "t240x128"),
    ],
)
def test_blocks_of_a_cluster_share_tiles_of_the_transpose(nt: bool, shape: Any, tile: str) -> None:
    assert_is_right(shape, nt, {"wgmma": tile, "cluster": 2})


def assert_is_right(shape: tuple[int, int, int], nt: bool, knobs: dict[str, Any]) -> None:
    operator = (gemm_nt if nt else gemm).OPERATOR
    config = operator.default_config() | knobs
    with w.SM90A:
        sch = operator.schedule(operator.compute(shape, "float16"), config)
    a, b, want = w.operands(shape, "float16", nt)
    report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    assert report.hazards == []
    off = np.abs(report.outputs["C"].astype(np.float64) - want)
    assert (off <= 2.0**-11 * np.abs(want) + 1e-3).all()


def test_the_modelled_cost_is_that_of_its_products() -> None:
    task = make_task("gemm_nt", (512, 512, 512), "float16")
    config = task.space.default()
    assert config["wgmma"] != "none"
    model = costs(task, config).model
    assert model["products"] == 2 * 512**3
    assert model["bank_conflicts"] == 0
    assert model["cost"] < costs(task, config | {"wgmma": "none", "split_k": 1}).model["cost"]


@pytest.mark.matrix
@pytest.mark.parametrize("slices", [2, 3, 4, 8])
@pytest.mark.parametrize("tile", [t for t in hopper.TILES if t in CONV_TILES])
def test_slices_of_a_convolution_that_are_legal_are_lowered(tile: str, slices: int) -> None:
    """Sums of 128x208 in three slices did not fit where stages were, and were the default."""
    columns = hopper.columns_of(tile)
    shape, operator = (1, 7, 7, 512, columns, 3, 3), find_operator("conv2d")
    config = {**Space(operator, shape, "float16", SM90A).default()}
    config |= {"wgmma": tile, "split_k": slices}
    if operator.refuse(shape, "float16", config, SM90A):
        pytest.skip("is refused")
    with tlx.cuda_target("sm_90a"):
        assert tlx.lower(operator.schedule(operator.compute(shape, "float16"), config).mod)


def test_slices_whose_sums_do_not_fit_are_refused() -> None:
    refused = hopper.check_wgmma(SM90A) or hopper._check_cluster("128x208", 3, 3)
    assert "exchange 212,992 bytes of sums" in str(refused)
    shape, operator = (1, 7, 7, 96, 208, 3, 3), find_operator("conv2d")
    assert Space(operator, shape, "float16", SM90A).default()["split_k"] == 2
