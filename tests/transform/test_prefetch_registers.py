"""Pass PrefetchSharedToRegister: what it emits, its results, and what it refuses."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.schedule.products import simulated as simulated_product
from tests.schedule.test_use_tensor_core import TYPES
from tests.schedules.test_gemm import SMALL
from tests.schedules.test_gemm import scheduled as gemm
from tests.transform.prefetched import scheduled, simulated, three_operands
from tvm_layout_ext import ScheduleError, decisions

TARGET = tlx.cuda_target("sm_90a")


def events(sch: s_tir.Schedule) -> str:
    """Order of loads (l), uses (u), copies (c), commits (;), waits (w), barriers (b), loops."""
    text = str(tlx.lower(sch.mod, target=TARGET).script())
    signs = {
        r"a_shared_local\[\d+\] = ": "l",
        r"= out_1\[threadIdx_x\] \+ ": "u",
        r'4, "async"': "c",
        "commit_group": ";",
        "wait_group": "w",
        "tvm_storage_sync": "b",
        r"for k_0 ": "(",
    }
    found = ""
    for line in text.splitlines():
        found += "".join(sign for pattern, sign in signs.items() if re.search(pattern, line))
    return found


def test_without_it_each_step_loads_what_it_uses() -> None:
    assert events(scheduled(4, 4, 3, prefetch=False)) == "cccc;cccc;(wbcccc;lulululuw"


def test_the_last_step_loads_the_first_of_the_next_chunk() -> None:
    """Copies lie between the steps, and the barrier before the last use."""
    assert events(scheduled(4, 4, 3)) == "cccc;cccc;wbl(lculculcc;uwbluw"


def test_without_a_pipeline_loads_run_ahead_inside_the_chunk() -> None:
    text = events(scheduled(4, 4, 1))
    assert text[text.index("l") :] == "llululuu"


def test_two_steps_in_turn_have_registers_of_their_own() -> None:
    text = str(tlx.lower(scheduled(4, 4, 3).mod, target=TARGET).script())
    loads = re.findall(r"a_shared_local\[(\d+)\] = ", text)
    uses = re.findall(r"\+ a_shared_local\[(\d+)\]", text)
    assert loads == ["0", "4", "0", "4", "0"]
    assert uses == ["0", "4", "0", "4"]


@pytest.mark.matrix
@pytest.mark.parametrize("chunks", [1, 2, 3, 5, "n"])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_results_stay_and_nothing_races(chunks: Any, steps: int, stages: int) -> None:
    for size in (1, 2, 3, 6) if chunks == "n" else (chunks,):
        assert simulated(scheduled(chunks, steps, stages), size, steps).hazards == []


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(64, 64, 32), (192, 128, 160), (200, 72, 88), (64, 64, 16)])
@pytest.mark.parametrize("tile_k", [32, 64])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_a_product_keeps_its_results_free_of_hazards(
    stages: int, tile_k: int, shape: tuple[int, int, int]
) -> None:
    product = replace(TYPES["f16"], shape=shape)
    config = SMALL | {"stages": stages, "tile_k": tile_k, "prefetch": 1}
    report = simulated_product(product, gemm(product, config))
    assert report.hazards == []
    assert report.bank_conflicts == 0


def streamed(config: dict[str, Any], shape: tuple[int, int, int]) -> Any:
    return gemm(replace(TYPES["f16"], shape=shape), SMALL | {"prefetch": 1, "stream": 1} | config)


def gemm_events(sch: s_tir.Schedule) -> str:
    """Order in the steady loop: fragments (a, b), products (m), copies (c), barriers (|)."""
    text = str(tlx.lower(sch.mod, target=TARGET).script())
    loop = text[re.search(r"\n *for k_0_0 in (?!T.unroll)", text).end() :]  # type: ignore[union-attr]
    signs = {
        r"ldmatrix.*A_\w*warp": "a",
        r"ldmatrix.*B_\w*warp": "b",
        r"ptx_legacy.mma\(": "m",
        r'16, "async"': "c",
        r"tvm_storage_sync": "|",
    }
    found = ""
    for line in loop.splitlines():
        found += "".join(sign for pattern, sign in signs.items() if re.search(pattern, line))
    return found


def test_pieces_of_a_step_are_loaded_one_piece_ahead() -> None:
    """Two steps of two pieces; the barrier stands before the last piece, after all loads."""
    found = gemm_events(streamed({"tile_k": 32, "stages": 3}, (64, 64, 128)))
    # Fragments of the next piece of B, a share of the next step's A, a step's share of copies.
    assert found == "baccmmmm" + "bammmm" + "bccmmmm" + "|" + "baammmm"


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(64, 64, 32), (384, 192, 160), (200, 72, 88)])
@pytest.mark.parametrize("tile", [(64, 64), (64, 192), (192, 64)])
@pytest.mark.parametrize("tile_k", [16, 32, 64])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_a_streamed_product_keeps_its_results_free_of_hazards(
    b_transposed: bool,
    prefetch: int,
    stages: int,
    tile_k: int,
    tile: tuple[int, int],
    shape: tuple[int, int, int],
) -> None:
    product = replace(TYPES["f16"], shape=shape, b_transposed=b_transposed)
    config = {"tile_m": tile[0], "tile_n": tile[1], "stages": stages, "tile_k": tile_k}
    sch = gemm(product, SMALL | config | {"prefetch": prefetch, "stream": 1})
    report = simulated_product(product, sch)
    assert report.hazards == []
    assert report.bank_conflicts == 0


def test_pieces_beside_another_statement_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"c_shared_local .* inside a step .* stands alone"):
        tlx.lower(three_operands().mod, target=TARGET)


def test_it_tells_that_pieces_run_on_into_the_next_step() -> None:
    with decisions.collect() as made:
        tlx.lower(streamed({"stages": 3}, (64, 64, 128)).mod, target=TARGET)
    told = [str(d) for d in made if "PrefetchSharedToRegister" in str(d)]
    assert len(told) == 2
    assert "on into the next step" in told[1]


@pytest.mark.parametrize(("stages", "where"), [(1, "inside it"), (3, "across loop k_0")])
def test_it_tells_how_far_loads_run_ahead(stages: int, where: str) -> None:
    with decisions.collect() as made:
        tlx.lower(scheduled(4, 4, stages).mod, target=TARGET)
    (told,) = [d for d in made if "PrefetchSharedToRegister" in str(d)]
    assert where in str(told)


def test_a_loop_that_is_not_unrolled_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"a_shared_local .* loop k_1, which is not unrolled"):
        tlx.lower(scheduled(4, 4, 3, unroll=False).mod, target=TARGET)


def test_a_load_apart_from_its_use_is_refused() -> None:
    sch = scheduled(4, 4, 1, apart=True)
    with pytest.raises(ScheduleError, match="no unrolled loop holds both it and a block"):
        tlx.lower(sch.mod, target=TARGET)


def test_a_source_that_the_loop_writes_is_refused() -> None:
    sch = scheduled(4, 4, 1)
    sch.compute_at("a_shared", sch.get_loops("out")[-1])
    with pytest.raises(ScheduleError, match="reads a_shared, which block a_shared writes"):
        tlx.lower(sch.mod, target=TARGET)


def test_an_unmarked_function_stays() -> None:
    mod = scheduled(4, 4, 1, prefetch=False).mod
    assert tlx.transform.PrefetchSharedToRegister()(mod).script() == mod.script()
