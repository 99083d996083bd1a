"""Products of the transpose: what they compute, and how their results reach their rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.kernels import changed
from tests.sampling import pairs
from tvm_layout_ext import decisions, te
from tvm_layout_ext.ir import ops
from tvm_layout_ext.transform.hopper import plan, turned_store

Shape = tuple[int, int, int]
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}
BY_TMA, BY_THREADS = "results stored by TMA", "results stored by each thread"


def swapped(
    sch: s_tir.Schedule, tile: tuple[int, int], consumers: int = 0, **more: Any
) -> s_tir.Schedule:
    """Schedule tiles of so many rows and columns of the result."""
    rows, columns = tile
    consumers = consumers or min(2, columns // 64)
    return w.schedule(sch, (columns, rows), consumers=consumers, swap=True, **more)


def simulated(sch: s_tir.Schedule, *arrays: Any, stored: str = BY_TMA) -> Any:
    """The report of a program without hazards, whose decision tells who stores the result."""
    with decisions.collect() as made:
        report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    assert any(stored in str(one) for one in made)
    return report


def assert_close(report: Any, want: Any, dtype: str = "float16") -> None:
    """One rounding, and sums in float32."""
    (found,) = report.outputs.values()
    assert (np.abs(found.astype(np.float64) - want) <= EPS[dtype] * np.abs(want) + 1e-4).all()


@pytest.mark.matrix
@pairs(
    case=[
        ((200, 136, 200), (72, 128), 2),  # Two chunks of 40 rows overlap by 8.
        ((310, 264, 136), (160, 128), 2),  # Three of 56, of which stmatrix takes 16 at a time.
        ((245, 136, 72), (248, 128), 2),
        ((245, 264, 80), (120, 256), 2),
        ((100, 72, 64), (64, 64), 1),
        ((61, 136, 72), (64, 128), 2),
        ((136, 200, 64), (104, 192), 3),
    ],
    b_transposed=[True, False],
    dtype=["float16", "bfloat16"],
)
def test_ragged_products_of_either_layout(case: Any, b_transposed: bool, dtype: str) -> None:
    shape, tile, consumers = case
    a, b, want = w.operands(shape, dtype, b_transposed)
    sch = swapped(w.product(shape, dtype, b_transposed), tile, consumers)
    assert_close(simulated(sch, a, b), want, dtype)


@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
def test_persistent_blocks_go_on_through_chunks(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 3)
    shape = (500, 392, 136)
    a, b, want = w.operands(shape)
    assert_close(
        simulated(swapped(w.product(shape), (160, 128), persistent=True, mode=mode), a, b), want
    )


def test_few_rows_stay_while_columns_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 3)
    shape = (150, 904, 72)
    a, b, want = w.operands(shape)
    report = simulated(
        swapped(w.product(shape), (152, 128), persistent=True), a, b, stored="B copied once a block"
    )
    assert_close(report, want)


@pytest.mark.parametrize("more", [{"slices": 2}, {"cluster": (2, 1)}, {"cluster": (1, 2)}])
def test_blocks_of_a_cluster_share_tiles(more: dict[str, Any]) -> None:
    shape = (240, 264, 264)
    a, b, want = w.operands(shape)
    assert_close(simulated(swapped(w.product(shape), (128, 128), **more), a, b), want)


def followed(
    shape: Shape, result: str, activation: str = "relu", batch: tuple[int, ...] = (1,)
) -> s_tir.Schedule:
    """An activation of a product and a bias, and a residual."""

    def end(value: Any, bias: Any, rest: Any) -> Any:
        value = value + bias
        relu = te.max(value, tvm.tirx.const(0, "float32"))
        value = relu if activation == "relu" else value * te.sigmoid(value)
        return (value + rest).astype(result)

    return w.followed(shape, end, batch)


@pytest.mark.parametrize(
    ("shape", "result", "activation", "stored"),
    [
        ((200, 136, 72), "float16", "relu", BY_TMA),
        ((203, 136, 72), "bfloat16", "silu", BY_TMA),
        # Rows of 266 bytes, and elements that stmatrix does not turn.
        ((200, 133, 72), "float16", "relu", BY_THREADS),
        ((200, 136, 72), "float32", "relu", BY_THREADS),
    ],
)
def test_what_follows_element_by_element_is_computed_from_registers(
    shape: Shape, result: str, activation: str, stored: str
) -> None:
    given, value, rest = w.given(shape, (1,))
    made = np.maximum(value, 0) if activation == "relu" else value / (1 + np.exp(-value))
    report = simulated(
        swapped(followed(shape, result, activation), (104, 128)), *given, stored=stored
    )
    assert_close(report, made + rest, result)


def test_a_batch_has_boxes_of_its_own() -> None:
    shape, batch = (100, 72, 72), (3,)
    given, value, rest = w.given(shape, batch)
    sch = followed(shape, "float16", batch=batch)
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 80, 64), swap=True)
    tlx.schedule.composed.gemm.by_warpgroups(sch, tc, (128, 80), 3, 2)
    assert_close(simulated(sch, *given), np.maximum(value, 0) + rest)


@pytest.mark.parametrize("tile", [(128, 128), (72, 128), (120, 256)])
def test_results_meet_no_bank_twice(tile: tuple[int, int]) -> None:
    a, b, _ = w.operands((128, 256, 64))
    report = simulated(swapped(w.product((128, 256, 64)), tile), a, b)
    stores = [one for one in report.accesses if one.kind == "stmatrix" and one.requests]
    assert stores
    assert sum(one.wavefronts for one in stores) == sum(one.bytes for one in stores) // 128
    assert not any(one.bank_conflicts for one in stores)
    assert not any(one.kind == "store" and one.requests for one in report.accesses)


@pytest.mark.parametrize(
    ("tile", "stages", "stored"),
    [
        # Two warpgroups have chunks of 32 KB, beside seven stages of 25 KB but not eight.
        ((72, 128), 7, BY_TMA),
        ((72, 128), 8, BY_THREADS),
        # A box has 64 rows where there are as many.
        ((56, 128), 3, BY_THREADS),
    ],
)
def test_chunks_are_taken_where_they_have_room(
    tile: tuple[int, int], stages: int, stored: str
) -> None:
    shape = (100, 136, 72)
    a, b, want = w.operands(shape)
    sch = swapped(w.product(shape), tile, stages=stages)
    assert_close(simulated(sch, a, b, stored=stored), want)


@pytest.mark.parametrize(
    ("name", "which", "text"),
    [
        (ops.PTX_FENCE_PROXY, 1, "no fence.proxy.async made known"),
        # Of the two barriers of a chunk the one behind its rows.
        (ops.PTX_BAR_SYNC_COUNT, 1, "reads tiles"),
        # The third chunk lies where the first one was.
        (ops.PTX_CP_ASYNC_BULK_WAIT_GROUP, 2, "overwritten before"),
    ],
)
def test_a_missing_order_is_a_hazard(name: str, which: int, text: str) -> None:
    shape = (160, 128, 64)
    given = w.program(swapped(w.product(shape), (160, 128)))
    a, b, _ = w.operands(shape)
    report = tlx.simulate(changed(given, name, lambda call: None, which), a, b, progress=False)
    assert any(text in one.message for one in report.hazards), report.hazards


def test_rows_that_are_not_swizzled_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = turned_store._row_of_lane

    def straight(thread: Any, matrices: int) -> Any:
        return right(thread - thread % 8, matrices) + thread % 8 * 128

    monkeypatch.setattr(turned_store, "_row_of_lane", straight)
    shape = (72, 128, 64)
    a, b, want = w.operands(shape)
    report = simulated(swapped(w.product(shape), (72, 128)), a, b)
    with pytest.raises(AssertionError):
        assert_close(report, want)
    assert any(one.bank_conflicts for one in report.accesses if one.kind == "stmatrix")


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize(
    ("tile", "dtype", "nt"), [((248, 128), "float16", True), ((120, 256), "bfloat16", False)]
)
def test_ptxas_keeps_the_sums_in_registers(
    tile: tuple[int, int], dtype: str, nt: bool, tmp_path: Path
) -> None:
    sch = swapped(w.product((504, 512, 512), dtype, nt), tile, stages=4, persistent=True)
    report = require_no_spills(cuda_text(sch), tmp_path)
    assert "Used 168 registers" in report
    assert not re.search(r"C75\d\d|C7602|wgmma", report)
