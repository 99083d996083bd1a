"""Kernels of warpgroups: what they compute, what they are made of, and what is refused."""

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
from tests.sampling import pairs
from tvm_layout_ext import ScheduleError, decisions, te
from tvm_layout_ext.ir.annotations import INPUT_PRECISION
from tvm_layout_ext.schedules._gemm_types import inputs
from tvm_layout_ext.transform.hopper import plan

#: Tiles that all blocks together take at a time, so that some take several.
FEW = 3


def simulated(sch: s_tir.Schedule, *arrays: Any) -> Any:
    report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    return next(iter(report.outputs.values())).astype(np.float64)


def assert_close(found: Any, want: Any, dtype: str = "float16") -> None:
    """One rounding to 11 or 8 bits, and sums in float32."""
    eps = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-22}[dtype]
    assert (np.abs(found - want) <= eps * np.abs(want) + 1e-4).all()


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4, 7])
def test_every_number_of_steps_against_that_of_stages(stages: int, steps: int) -> None:
    # A single term is a step of which the rest is zeros.
    shape = (128, 128, max(8, 64 * steps))
    a, b, want = w.operands(shape)
    assert_close(simulated(w.schedule(w.product(shape), stages=stages), a, b), want)


@pytest.mark.costly
@pairs(
    case=[
        ((256, 256, 128), (128, 256), 2),
        ((200, 248, 72), (128, 112), 2),
        ((100, 328, 136), (64, 168), 1),
        ((300, 72, 200), (256, 64), 2),
        ((200, 136, 64), (192, 128), 3),
    ],
    b_transposed=[True, False],
    dtype=["float16", "bfloat16"],
)
def test_ragged_products_of_either_layout(case: Any, b_transposed: bool, dtype: str) -> None:
    shape, tile, consumers = case
    a, b, want = w.operands(shape, dtype, b_transposed)
    sch = w.schedule(w.product(shape, dtype, b_transposed), tile, consumers=consumers)
    assert_close(simulated(sch, a, b), want, dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2", "float32"])
@pytest.mark.parametrize(
    ("shape", "tile"),
    [((128, 128, 256), (128, 128)), ((100, 200, 336), (128, 96)), ((72, 40, 80), (64, 24))],
)
def test_types_whose_rows_lie_along_k(
    shape: tuple[int, int, int], tile: tuple[int, int], dtype: str
) -> None:
    a, b = inputs(shape, dtype, np.random.default_rng(sum(shape)), b_transposed=True)
    sch = w.schedule(w.product(shape, dtype), tile, consumers=tile[0] // 64)
    found = simulated(sch, a, b)
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    if "int" in dtype:
        assert (found == want).all()
    else:
        assert_close(found, want, "float32" if dtype == "float32" else "float16")


@pytest.mark.costly
@pytest.mark.parametrize("columns", [8, 24, 128])
def test_sums_in_halves_lie_two_in_a_register(columns: int) -> None:
    shape = (100, 130, 136)
    A, B = (
        te.placeholder((n, shape[2]), "float16", name=x) for n, x in zip(shape, "AB", strict=False)
    )
    r = te.reduce_axis((0, shape[2]), "r")
    out = te.compute(shape[:2], lambda i, j: te.sum(A[i, r] * B[j, r], axis=r), name="product")
    sch = s_tir.Schedule(te.create_prim_func([A, B, out]))
    with decisions.collect() as made:
        a, b, want = w.operands(shape)
        off = np.abs(simulated(w.schedule(sch, (128, columns)), a, b) - want)
    # The sums are rounded once for each of the 9 instructions along K.
    assert (off <= 12 * 2.0**-11 * (1 + np.abs(want).max())).all()
    assert any(f"wgmma.m64n{columns}k16.f16.f16" in str(one) for one in made)


def test_types_and_columns_that_there_are_not_are_refused() -> None:
    def call(dtype: str, name: str, columns: int, nt: bool = True) -> str:
        sch = w.product((128, 256, 256), dtype, nt)
        depth = 128 // np.dtype(dtype).itemsize
        if dtype == "float32":
            sch.unannotate(sch.get_sblock("product"), INPUT_PRECISION)
        with w.SM90A, pytest.raises(ScheduleError) as caught:
            sch.use_tensor_core("product", name, multiples=(128, columns, depth))
        return str(caught.value)

    text = call("float32", "wgmma", 128)
    assert "only as tf32, which drops low bits" in text
    assert "instruction='wgmma.m64n128k8.f32.tf32'" in text
    text = call("int8", "wgmma", 256)
    assert text == (
        "wgmma multiplies 256 columns of int8; 8, 24 and multiples of 16 up to 224 are legal."
    )
    text = call("int8", "wgmma", 128, nt=False)
    assert "Rows of B do not lie along K; wgmma.m64n128k32.s32.s8 reads int8 only so" in text


@pytest.mark.costly
@pytest.mark.parametrize("tile", [(128, 64), (128, 128)])
def test_persistent_blocks_go_on_through_stages_and_chunks(
    tile: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", FEW)
    shape = (400, 328, 200)
    a, b, want = w.operands(shape)
    sch = w.schedule(w.product(shape), tile, persistent=True)
    with decisions.collect() as made:
        assert_close(simulated(sch, a, b), want)
    assert any(f"{FEW} persistent blocks" in str(one) for one in made)


KEPT = "B copied once a block"


def lowered_text(sch: s_tir.Schedule) -> tuple[str, str]:
    """What is told of the only kernel, and its script."""
    with decisions.collect() as made:
        (kernel,) = w.program(sch).kernels.values()
    (told,) = (str(one) for one in made if one.maker == "LowerWarpgroups")
    return told, kernel.script()


@pytest.mark.costly
@pytest.mark.parametrize("mode", ["cooperative", "pingpong"])
@pytest.mark.parametrize("b_transposed", [True, False])
@pytest.mark.parametrize("shape", [(520, 104, 24), (420, 112, 200)])
def test_b_stays_where_a_tile_has_all_columns(
    shape: tuple[int, int, int],
    b_transposed: bool,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", FEW)
    product = w.product(shape, b_transposed=b_transposed)
    sch = w.schedule(product, (128, 112), 2, persistent=True, mode=mode)
    a, b, want = w.operands(shape, "float16", b_transposed)
    assert_close(simulated(sch, a, b), want)
    told, text = lowered_text(sch)
    assert KEPT in told
    # Where a block begins the bytes of both tiles are expected, then those of A alone.
    a_bytes = 128 * (64 if mode == "pingpong" else 128)
    b_bytes = 128 * (112 if b_transposed else 128)
    assert [text.count(f"T.uint32({size})") for size in (a_bytes + b_bytes, a_bytes)] == [1, 1]
    chart = tlx.explain_pipeline(sch, target=w.SM90A).text()
    assert "B comes with the steps of a block's first tile, and stays." in chart


def test_a_batch_of_products_by_one_b_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", FEW)
    batch, m, n, k = 5, 200, 64, 72
    A, B = (
        te.placeholder(shape, "float16", name)
        for shape, name in (((batch, m, k), "A"), ((n, k), "B"))
    )
    r = te.reduce_axis((0, k), "r")

    def term(b: Any, i: Any, j: Any) -> Any:
        return te.sum(A[b, i, r].astype("float32") * B[j, r].astype("float32"), axis=r)

    out = te.compute((batch, m, n), term, name="product")
    result = te.compute((batch, m, n), lambda *x: out(*x).astype("float16"), name="C")
    sch = s_tir.Schedule(te.create_prim_func([A, B, result]))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 64, 64))
    tlx.schedule.composed.gemm.by_warpgroups(sch, tc, (128, 64), 3, 2)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(x).astype(np.float16) for x in ((batch, m, k), (n, k)))
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    assert_close(simulated(sch, a, b), want)
    assert KEPT in lowered_text(sch)[0]


@pytest.mark.parametrize(
    ("shape", "more"),
    [
        ((520, 136, 64), {}),  # Two tiles of columns.
        ((384, 104, 64), {}),  # A tile a block.
        ((520, 104, 64), {"persistent": False}),
        ((520, 104, 64), {"cluster": (2, 1)}),
        ((520, 104, 1000), {}),  # 16 steps of 14,336 bytes do not fit beside three stages of A.
    ],
)
def test_b_comes_with_each_tile_otherwise(
    shape: tuple[int, int, int], more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", FEW)
    sch = w.schedule(w.product(shape), (128, 112), **({"persistent": True} | more))
    assert KEPT not in lowered_text(sch)[0]


@pytest.mark.costly
@pytest.mark.parametrize(
    ("cluster", "tile", "shape", "b_transposed"),
    [
        ((2, 1), (128, 128), (512, 136, 200), False),
        ((1, 2), (128, 96), (136, 400, 200), False),
        ((1, 2), (128, 96), (136, 400, 200), True),
        # The last block of a cluster has nothing to store.
        ((2, 1), (64, 128), (130, 136, 64), True),
        ((4, 1), (64, 64), (300, 72, 136), True),
    ],
)
def test_blocks_of_a_cluster_copy_for_each_other(
    cluster: tuple[int, int],
    tile: tuple[int, int],
    shape: tuple[int, int, int],
    b_transposed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 5)
    a, b, want = w.operands(shape, "float16", b_transposed)
    sch = w.schedule(
        w.product(shape, "float16", b_transposed), tile, consumers=tile[0] // 64, persistent=True,
        cluster=cluster, group=3,
    )  # fmt: skip
    with decisions.collect() as made:
        assert_close(simulated(sch, a, b), want)
    side = "B" if cluster[0] > 1 else "A"
    assert any(f"in clusters of {max(cluster)} that share {side}" in str(one) for one in made)
    text = str(w.program(sch).kernels["main_kernel"])
    assert text.count("multicast::cluster") == (1 if b_transposed or side == "A" else tile[1] // 64)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("slices", "tile", "dtype", "by_box"),
    [
        (2, (128, 128), "float16", True),
        (2, (256, 64), "float16", True),
        # Shares of a tile that are no whole chunks go from registers.
        (4, (128, 96), "bfloat16", False),
        (4, (64, 8), "float16", False),
        (2, (128, 64), "int8", True),
        # Three blocks, of which two finish a chunk each, or one all columns.
        (3, (128, 128), "float16", True),
        (3, (64, 80), "float16", True),
        (3, (64, 64), "float16", True),
        (3, (64, 16), "bfloat16", False),
    ],
)
def test_slices_of_k_add_up_in_shared_memory(
    slices: int, tile: tuple[int, int], dtype: str, by_box: bool
) -> None:
    # The last slice of the cluster has fewer steps, or none.
    shape = (200, min(136, 3 * tile[1]), 64 * 5 + 8 if dtype != "int8" else 656)
    sch = w.schedule(
        w.product(shape, dtype), tile, consumers=min(2, tile[0] // 64), slices=slices, stages=4
    )
    a, b = inputs(shape, dtype, np.random.default_rng(0), b_transposed=True)
    with decisions.collect() as made:
        found = simulated(sch, a, b)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    if dtype == "int8":
        assert (found == want).all()
    else:
        assert_close(found, want, dtype)
    (told,) = [str(one) for one in made if "in clusters" in str(one)]
    assert f"in clusters of {slices} that share the steps along K" in told
    assert ("stored by TMA" in told) == by_box


def test_clusters_that_cannot_share_are_refused() -> None:
    shape = (256, 256, 64)
    assert "blocks share one operand" in refusal(w.schedule(w.product(shape), cluster=(2, 2)))
    text = refusal(w.schedule(w.product(shape), (128, 24), cluster=(2, 1)))
    assert text == ("2 blocks of a cluster share 24 rows of a tile; multiples of 16 are legal.")
    sch = w.product(shape)
    w.schedule(sch)
    sch.cluster(sch.get_loops("product_o")[0], 2)
    assert "say cluster(loop, size, multicast=True)" in refusal(sch)


def test_slices_that_cannot_add_up_are_refused() -> None:
    def of(**more: Any) -> str:
        return refusal(w.schedule(w.product((256, 256, 512)), **more))

    assert of(slices=2, persistent=True) == (
        "A cluster of 2 adds up slices of K, but persistent blocks copy ahead into the memory "
        "where sums are added up."
    )
    assert "its blocks share B already; leave one of the two out" in of(slices=2, cluster=(2, 1))
    text = of(tile=(128, 256), slices=2, stages=1)
    assert "but 65,536 bytes of sums do not fit where 49,152 bytes of stages were" in text
    sch = w.product((256, 256, 128))
    with pytest.raises(ScheduleError, match="has 2 steps, too few for a cluster of 3"):
        w.schedule(sch, slices=3)


@pytest.mark.costly
@pytest.mark.parametrize("result", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(200, 136, 72), (200, 133, 72)])
def test_what_follows_element_by_element_is_computed_from_registers(
    shape: tuple[int, int, int], result: str
) -> None:
    def relu(value: Any, bias: Any, rest: Any) -> Any:
        return (te.max(value + bias, tvm.tirx.const(0, "float32")) + rest).astype(result)

    arrays, value, rest = w.given(shape)
    found = simulated(w.schedule(w.followed(shape, relu)), *arrays)
    assert_close(found, np.maximum(value, 0) + rest, result)


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_results_of_either_size_meet_no_bank_twice(dtype: str) -> None:
    shape = (128, 128, 128)
    a, b = inputs(shape, dtype, np.random.default_rng(0), b_transposed=True)
    report = tlx.simulate(w.schedule(w.product(shape, dtype)), a, b, target=w.SM90A, progress=False)
    stores = [
        one for one in report.accesses
        if one.scope == "shared.dyn" and one.kind == "store" and one.requests
    ]  # fmt: skip
    assert sum(one.wavefronts for one in stores) == sum(one.bytes for one in stores) // 128
    assert stores
    assert not any(one.bank_conflicts for one in stores)


def test_a_batch_and_a_result_of_another_order() -> None:
    size, m, n, k = 3, 100, 72, 72
    A = te.placeholder((size, m, k), "float16", name="A")
    B = te.placeholder((n, size, k), "float16", name="B")
    r = te.reduce_axis((0, k), "r")
    product = te.compute(
        (size, m, n),
        lambda b, i, j: te.sum(A[b, i, r].astype("float32") * B[j, b, r].astype("float32"), axis=r),
        name="product",
    )
    out = te.compute((m, size, n), lambda i, b, j: product[b, i, j].astype("float16"), name="out")
    sch = s_tir.Schedule(te.create_prim_func([A, B, out]))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 128, 64))
    m_loop, warpgroup = sch.split(tc.m, [None, 2])
    sch.reorder(*tc.batch, m_loop, tc.n, warpgroup, tc.k)
    sch.bind(sch.fuse(*tc.batch), "blockIdx.z")
    sch.rasterize(m_loop, tc.n)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.pipeline(tc.k, 2)
    sch.specialize_warps(warpgroup)
    sch.reverse_compute_at(tc.result, tc.n)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((size, m, k), (n, size, k)))
    want = np.einsum("bmk,nbk->mbn", a.astype(np.float64), b.astype(np.float64))
    assert_close(simulated(sch, a, b), want)


def test_the_kernel_is_made_of_what_the_decision_says() -> None:
    told, text = lowered_text(w.schedule(w.product((256, 256, 256)), (128, 256), 4))
    assert "wgmma.m64n256k16.f32.f16 on tiles of 128x256x64, 4 stages by TMA, 2 warpgroups" in told
    assert "results stored by TMA" in told
    # Four wgmma a step, one box of A and B each, and four chunks of 64 columns.
    counts = {"m64n256k16": 4, '"shared::cluster"': 2, '"bulk_group"': 4, "setmaxnreg": 2}
    assert {name: text.count(name) for name in counts} == counts
    assert "tvm_storage_sync" not in text


def test_the_chart_shows_copies_ahead_of_the_products_of_a_tile() -> None:
    sch = w.schedule(w.product((256, 256, 512)), stages=3)
    text = tlx.explain_pipeline(sch, target=w.SM90A).text()
    assert "Loop k, 8 iterations, 2 before the first that computes" in text
    multiplies = (
        r"wgmma\.m64n128k16\.f32\.f16 \(warpgroups 0 to 1\) +\. +\. +0 v0 +1 v1 +2 v2 +3 v0"
    )
    assert re.search(multiplies, text)
    assert re.search(r"copy A \(async, warpgroup 2\) +0 v0 +1 v1 +2 v2 +3 v0", text)
    assert "full[version]: 32,768 bytes, waited for by warpgroups 0 to 1." in text
    assert "empty[version]: 2 arrivals, one iteration after its products, waited for by" in text
    assert "A: 3 versions x 16,384 = 49,152 bytes" in text


def test_a_result_that_tma_cannot_store_is_stored_by_threads() -> None:
    with decisions.collect() as made:
        a, b, want = w.operands((72, 133, 64))
        assert_close(
            simulated(w.schedule(w.product((72, 133, 64)), (64, 128), consumers=1), a, b), want
        )
    assert any("results stored by each thread" in str(one) for one in made)


@pytest.mark.parametrize(
    ("shape", "dtype", "tile", "mode"),
    [
        ((200, 32, 64), "float16", (128, 32), "cooperative"),
        ((328, 40, 136), "bfloat16", (128, 32), "cooperative"),
        ((200, 32, 64), "float16", (128, 32), "pingpong"),
    ],
)
def test_rows_of_64_bytes_leave_by_boxes_without_conflicts(
    shape: tuple[int, int, int], dtype: str, tile: tuple[int, int], mode: str
) -> None:
    persistent = mode == "pingpong"
    sch = w.schedule(w.product(shape, dtype), tile, mode=mode, persistent=persistent)
    a, b, want = w.operands(shape, dtype)
    with decisions.collect() as made:
        report = tlx.simulate(sch, a, b, target=w.SM90A, progress=False)
    (found,) = report.outputs.values()
    assert_close(found, want, dtype)
    assert (report.hazards, report.bank_conflicts) == ([], 0)
    assert any("results stored by TMA" in str(one) for one in made)


def test_rows_of_64_bytes_that_find_no_room_are_stored_by_threads() -> None:
    with decisions.collect() as made:
        tlx.lower(w.schedule(w.product((200, 32, 1024)), (128, 32), stages=11), target=w.SM90A)
    assert any("results stored by each thread" in str(one) for one in made)


def refusal(sch: s_tir.Schedule, target: Any = w.SM90A) -> str:
    with pytest.raises(ScheduleError) as caught:
        tlx.lower(sch, target=target)
    return str(caught.value)


def test_what_tma_and_shared_memory_do_not_take_is_refused_in_a_sentence() -> None:
    text = refusal(w.schedule(w.product((128, 128, 100))))
    assert re.search(
        r"Rows of \w+ are 200 bytes apart; TMA needs a multiple of 16; .*mma.sync", text
    )
    text = refusal(w.schedule(w.product((128, 256, 128)), (128, 256), 5))
    assert "5 stages of 49,152 bytes and the results take" in text
    assert "sm_90a has 232,448 for a block" in text
    text = refusal(w.schedule(w.product((384, 128, 128)), (384, 128)))
    assert "A thread would hold 192 sums; of 2 warpgroups" in text
    assert "has registers for 176" in text
    text = refusal(w.schedule(w.product((320, 64, 128)), (320, 64), 2, consumers=1))
    assert "A tile of A has 320 rows; a box of TMA has 256 at most" in text
    text = refusal(w.schedule(w.product((128, 128, 128))), tlx.cuda_target("sm_80"))
    assert (
        "wgmma.m64n128k16.f32.f16, an instruction of sm_90a alone; it is lowered for sm_80" in text
    )


def test_a_schedule_of_another_form_is_refused() -> None:
    shape = (256, 256, 128)

    def tiled() -> tuple[Any, Any, Any, Any]:
        sch = w.product(shape)
        with w.SM90A:
            tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 128, 64))
        m, warpgroup = sch.split(tc.m, [None, 2])
        sch.reorder(m, tc.n, warpgroup, tc.k)
        return sch, tc, m, warpgroup

    sch, tc, m, warpgroup = tiled()
    assert "bind its loops of rows and columns to blockIdx.y and blockIdx.x" in refusal(sch)
    sch.rasterize(m, tc.n)
    assert "call sch.specialize_warps on the loop over its warpgroups" in refusal(sch)
    sch.specialize_warps(warpgroup)
    sch.compute_at(tc.a, tc.k)
    assert re.search(r"is filled by 0 blocks inside .* use sch.compute_at", refusal(sch))
    sch.compute_at(tc.b, tc.k)
    assert re.search(r"are read by 0 blocks inside .* sch.reverse_compute_at", refusal(sch))
    sch.reverse_compute_at(tc.result, tc.n)
    tlx.lower(sch, target=w.SM90A)
    sch.double_buffer(tc.a, 2, async_copy=False)
    assert "shall not copy asynchronously, but wgmma reads what TMA copied" in refusal(sch)


def test_tiles_in_another_order_and_operands_that_are_computed_are_refused() -> None:
    sch = w.product((256, 256, 128))
    with w.SM90A:
        tc = sch.use_tensor_core("product", "wgmma", multiples=(128, 128, 64))
    warpgroup, m = sch.split(tc.m, [2, None])
    sch.reorder(m, tc.n, warpgroup, tc.k)
    sch.rasterize(m, tc.n)
    sch.specialize_warps(warpgroup)
    for operand in (tc.a, tc.b):
        sch.compute_at(operand, tc.k)
    sch.reverse_compute_at(tc.result, tc.n)
    assert re.search(r"counts its tiles of rows as .*; warpgroups take", refusal(sch))

    A, B = (te.placeholder((128, 64), "float16", name=name) for name in "AB")
    half = te.compute((128, 64), lambda i, j: A[i, j] * tvm.tirx.const(2, "float16"), name="half")
    r = te.reduce_axis((0, 64), "r")
    product = te.compute(
        (128, 128),
        lambda i, j: te.sum(half[i, r].astype("float32") * B[j, r].astype("float32"), axis=r),
        name="product",
    )
    sch = s_tir.Schedule(te.create_prim_func([A, B, product]))
    w.schedule(sch)
    sch.compute_inline("half")
    assert re.search(r"copies .*; TMA copies boxes as they are, so compute it before", refusal(sch))


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_ptxas_keeps_the_sums_in_registers_and_products_in_flight(
    dtype: str, tmp_path: Path
) -> None:
    """No spill, no warning that wgmma is serialised, and the registers that the pool is for."""
    sch = w.schedule(w.product((512, 512, 512), dtype, False), (128, 256), 4, persistent=True)
    report = require_no_spills(cuda_text(sch), tmp_path)
    assert "Used 168 registers" in report
    assert not re.search(r"C75\d\d|C7602|wgmma", report)
