"""Two warpgroups with tiles of their own, which multiply in turns."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, tirx

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tests.programs.emitted import cuda_text, require_no_spills
from tests.programs.kernels import changed
from tests.sampling import pairs
from tests.transform.hopper.test_lower_warpgroups import assert_close, refusal, simulated
from tests.transform.hopper.test_windows import compared, convolution
from tvm_layout_ext import SimulationError, decisions, te
from tvm_layout_ext.ir import ops
from tvm_layout_ext.ir.annotations import PINGPONG
from tvm_layout_ext.ir.queries import thread_tag
from tvm_layout_ext.schedules import gemm_scaled, grouped_gemm
from tvm_layout_ext.transform.hopper import plan, roles

Shape = tuple[int, int, int]


@pytest.fixture(autouse=True)
def _few_multiprocessors(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many blocks that each takes several tiles."""
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 2)


def in_turns(shape: Shape, tile: tuple[int, int], stages: int = 3, **more: Any) -> s_tir.Schedule:
    """A product whose warpgroups have tiles of so many rows and columns."""
    dtype, nt = more.pop("dtype", "float16"), more.pop("b_transposed", True)
    sch = more.pop("sch", None) or w.product(shape, dtype, nt)
    both = (2 * tile[0], tile[1])
    return w.schedule(sch, both, stages, persistent=True, mode="pingpong", **more)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7])
def test_every_number_of_steps_against_that_of_stages(stages: int, steps: int) -> None:
    # Five tiles: of the two blocks one has three, the other two.
    shape = (320, 64, max(8, 64 * steps))
    a, b, want = w.operands(shape)
    assert_close(simulated(in_turns(shape, (64, 64), stages), a, b), want)


@pairs(
    case=[
        # Tiles of either parity, fewer than blocks, beyond the last row and column.
        ((64, 64, 64), (64, 64)),
        ((128, 192, 128), (64, 64)),
        ((200, 248, 72), (128, 112)),
        ((100, 328, 136), (64, 168)),
        ((500, 72, 200), (192, 64)),
        # Results that TMA cannot store.
        ((200, 133, 136), (64, 72)),
    ],
    b_transposed=[True, False],
    dtype=["float16", "bfloat16"],
)
def test_ragged_products_of_either_layout(case: Any, b_transposed: bool, dtype: str) -> None:
    shape, tile = case
    if not b_transposed and shape[1] % 8:
        pytest.skip("Rows of B are no multiple of 16 bytes.")
    a, b, want = w.operands(shape, dtype, b_transposed)
    sch = in_turns(shape, tile, dtype=dtype, b_transposed=b_transposed)
    assert_close(simulated(sch, a, b), want, dtype)


def test_tiles_of_a_warpgroup_are_one_behind_the_other() -> None:
    shape = (256, 128, 128)
    with decisions.collect() as made:
        (kernel,) = w.program(in_turns(shape, (64, 128))).kernels.values()
    (told,) = (str(one) for one in made if one.maker == "LowerWarpgroups")
    assert (
        "on tiles of 64x128x64, B copied once a block, 3 stages by TMA, 2 warpgroups that" in told
    )
    assert "multiply in turns and" in told
    text = kernel.script()
    counts = {"m64n128k16": 4, '"shared::cluster"': 2, '"bulk_group"': 2, "T.ptx.bar(": 6}
    assert {name: text.count(name) for name in counts} == counts
    chart = tlx.explain_pipeline(in_turns(shape, (64, 128)), target=w.SM90A).text()
    assert "empty[version]: 1 arrivals" in chart
    assert "warpgroups 0 to 1 in turns" in chart


@pytest.mark.costly
@pytest.mark.parametrize(
    ("cluster", "tile", "shape", "b_transposed"),
    [
        ((2, 1), (64, 128), (640, 136, 200), False),
        ((1, 2), (128, 96), (264, 800, 136), True),
    ],
)
def test_blocks_of_a_cluster_copy_for_each_other(
    cluster: tuple[int, int],
    tile: tuple[int, int],
    shape: Shape,
    b_transposed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 3)
    a, b, want = w.operands(shape, "float16", b_transposed)
    sch = in_turns(shape, tile, cluster=cluster, b_transposed=b_transposed)
    with decisions.collect() as made:
        assert_close(simulated(sch, a, b), want)
    assert any("2 persistent blocks in clusters of 2 that share" in str(one) for one in made)


def followed(shape: Shape, result: str) -> s_tir.Schedule:
    """GELU of a product and a bias, times SiLU of it, and a residual."""
    half, one, root = (tirx.const(x, "float32") for x in (0.5, 1, 0.5**0.5))

    def end(value: Any, bias: Any, rest: Any) -> Any:
        own = value + bias.astype("float32")
        gelu = own * half * (one + te.erf(own * root))
        return (gelu * te.sigmoid(gelu) + rest).astype(result)

    return w.followed(shape, end)


@pytest.mark.costly
@pytest.mark.parametrize("result", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(200, 136, 72), (200, 133, 72)])
def test_what_follows_element_by_element_is_computed_from_registers(
    shape: Shape, result: str
) -> None:
    arrays, own, rest = w.given(shape)
    gelu = own * 0.5 * (1 + np.vectorize(math.erf)(own * 0.5**0.5))
    want = gelu / (1 + np.exp(-gelu)) + rest
    sch = in_turns(shape, (64, 64), sch=followed(shape, result))
    rounded = 2.0**-11 if result == "float16" else 2.0**-20
    np.testing.assert_allclose(simulated(sch, *arrays), want, rounded, 1e-4)


def test_columns_of_few_rows_take_the_rows_of_the_instruction() -> None:
    shape = (24, 320, 200)
    sch = w.product(shape)
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 24, 64), swap=True)
    m, warpgroup = sch.split(tc.m, [None, 2])
    sch.reorder(m, tc.n, warpgroup, tc.k)
    sch.rasterize(m, tc.n)
    sch.persistent(m)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, 3)
    sch.specialize_warps(warpgroup, mode="pingpong")
    sch.reverse_compute_at(tc.result, tc.n)
    a, b, want = w.operands(shape)
    assert_close(simulated(sch, a, b), want)


def test_batches_have_tiles_one_behind_the_other() -> None:
    size, m, n, k = 3, 100, 72, 136
    A, B = (te.placeholder((size, x, k), "float16", name=name) for x, name in ((m, "A"), (n, "B")))
    r = te.reduce_axis((0, k), "r")
    product = te.compute(
        (size, m, n),
        lambda b, i, j: te.sum(A[b, i, r].astype("float32") * B[b, j, r].astype("float32"), axis=r),
        name="product",
    )
    out = te.compute(product.shape, lambda b, i, j: product[b, i, j].astype("float16"), name="out")
    sch = s_tir.Schedule(te.create_prim_func([A, B, out]))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 72, 64))
    m_loop, warpgroup = sch.split(tc.m, [None, 2])
    sch.reorder(*tc.batch, m_loop, tc.n, warpgroup, tc.k)
    sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    sch.rasterize(m_loop, tc.n)
    sch.persistent(m_loop)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, 2)
    sch.specialize_warps(warpgroup, mode="pingpong")
    sch.reverse_compute_at(tc.result, tc.n)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((size, m, k), (size, n, k)))
    want = np.einsum("bmk,bnk->bmn", a.astype(np.float64), b.astype(np.float64))
    assert_close(simulated(sch, a, b), want)


def test_pixels_of_a_convolution_are_rows() -> None:
    image, weight = (3, 7, 9, 64), (72, 3, 3, 64)
    sch = in_turns((0, 0, 0), (64, 64), sch=convolution(image, weight, pad=1), block="conv")
    compared(sch, image, weight, 1, 1, 1)


def test_what_has_no_next_tile_or_counts_otherwise_is_refused() -> None:
    shape = (256, 256, 512)
    text = refusal(w.schedule(w.product(shape), mode="pingpong"))
    assert text == (
        "Two warpgroups shall multiply in turns (pingpong), but each block has a single tile; call "
        "sch.persistent on the loop of its rows."
    )
    text = refusal(in_turns(shape, (64, 128), slices=2))
    assert "adds up slices of K, but persistent blocks copy ahead" in text
    text = refusal(in_turns(shape, (192, 128)))
    assert "A thread would hold 192 sums; of 2 warpgroups" in text
    for operator, sizes, dtype, problem in (
        (
            grouped_gemm.OPERATOR,
            (2, 256, 128, 64),
            "float16",
            "tiles of groups of rows are counted",
        ),
        (gemm_scaled.OPERATOR, (256, 128, 256), "float8_e4m3fn", "it scales the sums of each step"),
    ):
        with w.SM90A:
            config = operator.default_config() | {"tile": "128x128"}
            sch = operator.schedule(operator.compute(sizes, dtype), config)
        loops = sch.get_loops("product_o")
        (group,) = (loop for loop in loops if thread_tag(sch.get(loop)) == "threadIdx.y")
        sch.annotate(group, PINGPONG, 1)
        assert problem in refusal(sch)


#: Five tiles of two blocks, and more steps than stages.
SHAPE = (320, 64, 448)

Change = Callable[[Any], Any]


def mutated(name: str, change: Change, which: int) -> Any:
    given = w.program(in_turns(SHAPE, (64, 64)))
    a, b, _ = w.operands(SHAPE)
    return tlx.simulate(changed(given, name, change, which), a, b, progress=False)


def _left_out(call: Any) -> None:
    return None


def _flipped(call: Any) -> Any:
    return w.with_argument(call, 1, 1 - call.args[1])


def _with(position: int, value: int, dtype: str) -> Change:
    return lambda call: w.with_argument(call, position, tirx.const(value, dtype))


ENDLESS: dict[str, tuple[str, Change, int, str]] = {
    "consumers wait for the other parity": (
        ops.CUDA_MBARRIER_WAIT, _flipped, 1, r"parity 1 of full\[0\], phase 1",
    ),
    "the producer waits for the other parity": (
        ops.CUDA_MBARRIER_WAIT, _flipped, 0, r"parity 0 of empty\[0\], phase 0",
    ),
    "nobody lets the other go on": (
        ops.PTX_BAR_ARRIVE, _left_out, 0, "for named barrier 4, where 128 threads are",
    ),
    "each lets itself go on": (
        ops.PTX_BAR_ARRIVE,
        lambda call: w.with_argument(call, 0, tirx.const(7, "uint32") - call.args[0]), 0,
        "for named barrier 4, where 128 threads are",
    ),
    "nobody waits for its turn": (
        ops.PTX_BAR_SYNC_COUNT, _left_out, 0,
        "Before that: .* (overwrites what a wgmma may still|with no wait at the mbarrier of)",
    ),
    "both give a stage back": (
        ops.PTX_MBARRIER_INIT, _with(1, 2, "uint32"), 1, "lacks 1 of 2 arrivals",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ENDLESS)
def test_turns_that_never_come_are_told_with_what_they_wait_for(case: str) -> None:
    name, change, which, text = ENDLESS[case]
    with pytest.raises(SimulationError, match=text):
        mutated(name, change, which)


HAZARDS: dict[str, tuple[str, Change, int, str]] = {
    "a stage is given back before its product is done": (
        ops.PTX_WGMMA_WAIT_GROUP, _with(0, 2, "int32"), 0, "overwrites what a wgmma may still read",
    ),
    "sums are read before they are there": (
        ops.PTX_WGMMA_WAIT_GROUP, _left_out, 1, "sums of a wgmma that was not waited for",
    ),
    "results are stored before all have written them": (
        ops.PTX_BAR_SYNC_COUNT, _left_out, 2, "reads tiles",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HAZARDS)
def test_a_missing_order_is_a_hazard(case: str) -> None:
    name, change, which, text = HAZARDS[case]
    report = mutated(name, change, which)
    assert any(text in hazard.message for hazard in report.hazards), report.hazards


def test_a_turn_that_is_handed_on_before_the_products_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = roles.in_turn

    def early(*given: Any) -> list[Any]:
        wait, steps, hand_on = right(*given)
        return [wait, hand_on, steps]

    monkeypatch.setattr(roles, "in_turn", early)
    a, b, _ = w.operands(SHAPE)
    with pytest.raises(SimulationError, match=r"parity 1 of full.2., phase 3 of which lacks"):
        tlx.simulate(in_turns(SHAPE, (64, 64)), a, b, target=w.SM90A, progress=False)


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize(("tile", "stages"), [((128, 128), 6), ((64, 256), 4)])
def test_ptxas_keeps_the_sums_in_registers_and_products_in_flight(
    tile: tuple[int, int], stages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 132)
    shape = (4096, 4096, 768)
    sch = in_turns(shape, tile, stages, sch=followed(shape, "float16"))
    report = require_no_spills(cuda_text(sch), tmp_path)
    assert "Used 168 registers" in report
    assert not re.search(r"C75\d\d|C7602|wgmma", report)
