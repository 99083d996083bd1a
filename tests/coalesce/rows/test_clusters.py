"""Rows that the blocks of a cluster share: what they exchange, and when they end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tvm import s_tir, te, tirx, topi

import tvm_layout_ext as tlx
from tests.coalesce.rows.test_kernels import drawn, fused, shares, softmax
from tests.programs.kernels import changed
from tests.programs.running import gives
from tvm_layout_ext import ScheduleError, SimulationError, decisions
from tvm_layout_ext.build import device_program
from tvm_layout_ext.cubin import machine_code
from tvm_layout_ext.gpu.hardware import architecture
from tvm_layout_ext.ir import ops
from tvm_layout_ext.target import cuda_target
from tvm_layout_ext.tune.space.operator import find_operator


def words(sch: s_tir.Schedule, pattern: str) -> list[Any]:
    return re.findall(pattern, tlx.lower(sch).script())


@pytest.mark.parametrize("cluster", [2, 4, 8])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_each_row_is_read_once_by_a_cluster(name: str, dtype: str, cluster: int) -> None:
    operator = find_operator(name)
    shape = (3, 8192)
    config = {**operator.default_config(), "cluster": cluster}
    sch = operator.schedule(operator.compute(shape, dtype), config)
    inputs = operator.inputs(shape, dtype, np.random.default_rng(0))
    report = tlx.simulate(sch, *inputs, None, progress=False)
    assert not report.hazards
    assert report.launches[0].blocks == 3 * cluster
    np.testing.assert_allclose(
        report.outputs["B"], operator.reference(*inputs), rtol=2e-3, atol=1e-3
    )
    for buffer in ("A", "B"):
        sectors = sum(a.sectors for a in report.accesses if a.buffer == buffer)
        assert sectors == inputs[0].nbytes // 32


def test_a_round_sends_what_each_warp_found_to_each_block() -> None:
    before, after = (softmax(4, 4096, cluster=n, num_threads=128) for n in (1, 4))
    for what in ("clusterCtaIdx", "st_async", "mbarrier"):
        assert not words(before, what)
    # The greatest number, and the sum: 16 warps of 4 blocks send 4 bytes each.
    assert len(words(after, r"ptx\.st_async\(")) == 2
    assert len(words(after, r"mbarrier_wait\(")) == 2
    assert words(after, r'uint32\((\d+)\), "arrive", "expect_tx"') == ["64"] * 2
    assert words(after, r'launch_thread\("([a-zA-Z]+)\.x", (\d+)\)') == [
        ("blockIdx", "16"),
        ("clusterCtaIdx", "4"),
        ("threadIdx", "128"),
    ]


def test_sums_of_one_level_share_a_round() -> None:
    x = te.placeholder((2, 4096), "float32", "X")
    k, j = (te.reduce_axis((0, 4096), name) for name in "kj")
    total = te.compute((2,), lambda i: te.sum(x[i, k], k), "total")
    squares = te.compute((2,), lambda i: te.sum(x[i, j] * x[i, j], j), "squares")
    sch = fused([x, total, squares], cluster=2)
    assert len(words(sch, r"mbarrier_wait\(")) == 1
    a = drawn(2, 4096)
    report = gives(sch, a, None, None, progress=False)
    np.testing.assert_allclose(report.outputs["total"], a.sum(1, dtype="float64"), rtol=1e-5)
    np.testing.assert_allclose(report.outputs["squares"], (a.astype("f8") ** 2).sum(1), rtol=1e-5)


def test_rows_kept_in_32_bits_of_a_block_have_places() -> None:
    # Two values of 16 bits each, of two inputs, which TVM takes for registers.
    x, y = (te.placeholder((3, 2), "float16", name) for name in "XY")
    k, j = (te.reduce_axis((0, 2), name) for name in "kj")
    first = te.compute((3,), lambda i: te.sum(x[i, k].astype("float32"), k), "first")
    second = te.compute((3,), lambda i: te.sum(y[i, j].astype("float32"), j), "second")
    sch = fused([x, y, first, second], cluster=2, keep="shared", vector_bytes=16)
    a, b = (drawn(3, 2).astype("float16") for _ in range(2))
    report = gives(sch, a, b, None, None, progress=False)
    np.testing.assert_allclose(report.outputs["first"], a.sum(1, dtype="float32"), rtol=1e-5)
    np.testing.assert_allclose(report.outputs["second"], b.sum(1, dtype="float32"), rtol=1e-5)


def test_all_blocks_have_the_same_bits() -> None:
    x = te.placeholder((5, 32768), "float32", "X")
    k = te.reduce_axis((0, 32768), "k")
    total = te.compute((5,), lambda i: te.sum(x[i, k], k), "total")
    sch = fused([x, total, te.compute((5, 32768), lambda i, _: total[i], "spread")], cluster=8)
    outputs = tlx.simulate(sch, drawn(5, 32768), None, None, progress=False).outputs
    assert np.array_equal(outputs["spread"], np.repeat(outputs["total"][:, None], 32768, 1))


@pytest.mark.costly
@pytest.mark.parametrize("cluster", [2, 8])
@pytest.mark.parametrize("length", [1023, 4097, 10000])
def test_rows_may_be_of_any_length_and_number(length: int, cluster: int) -> None:
    program = device_program(softmax(te.var("n"), length, cluster=cluster))
    for rows in (1, 7):
        x = drawn(rows, length)
        report = tlx.simulate(program, x, np.empty_like(x), progress=False)
        assert not report.hazards
        np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


@pytest.mark.costly
@pytest.mark.parametrize("place", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8"])
def test_a_place_leaves_with_its_value(dtype: str, place: str) -> None:
    a = np.random.default_rng(0).integers(-100, 100, (3, 5000)).astype(dtype)
    extents = [tirx.IntImm(place, n) for n in a.shape]
    x = te.placeholder(extents, dtype, "X")
    where = topi.argmax(x, axis=1)
    value = te.compute(extents[:1], lambda i: x[i, where[i]], "value")
    sch = fused([x, where, value], cluster=4)
    report = gives(sch, a, None, None, progress=False, X_red=a.argmax(1))
    np.testing.assert_array_equal(report.outputs["value"], a.max(1))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64"])
def test_results_of_any_size_are_exchanged(dtype: str) -> None:
    a = np.random.default_rng(0).integers(0, 2, (2, 2048)).astype(dtype)
    a[1] = 0
    x = te.placeholder(a.shape, dtype, "X")
    k = te.reduce_axis((0, 2048), "k")
    top = te.compute((2,), lambda i: te.max(x[i, k], k), "top")
    report = tlx.simulate(fused([x, top], cluster=8), a, None, progress=False)
    np.testing.assert_array_equal(report.outputs["top"], a.max(1))


def test_a_log_of_sums_of_exponentials() -> None:
    x = te.placeholder((3, 8192), "float16", "X")
    k, j = (te.reduce_axis((0, 8192), name) for name in "kj")
    top = te.compute((3,), lambda i: te.max(x[i, k].astype("float32"), k), "top")
    total = te.compute(
        (3,), lambda i: te.sum(te.exp(x[i, j].astype("float32") - top[i]), j), "total"
    )
    result = te.compute((3,), lambda i: te.log(total[i]) + top[i], "result")
    a = drawn(3, 8192, dtype="float16")
    report = tlx.simulate(fused([x, result], cluster=2), a, None, progress=False)
    want = np.log(np.exp(a.astype("float64")).sum(1))
    np.testing.assert_allclose(report.outputs["result"], want, rtol=1e-5)


@pytest.mark.parametrize("keep", ["registers", "shared", "none"])
def test_a_block_keeps_its_part_where_one_says(keep: str) -> None:
    sch = softmax(2, 16384, keep=keep, cluster=4, num_threads=128)
    x = drawn(2, 16384)
    report = tlx.simulate(sch, x, None, progress=False)
    assert not report.hazards
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


def test_few_long_rows_go_to_clusters_and_many_short_ones_do_not() -> None:
    for shape, is_shared in (((128, 131072), True), ((32768, 1024), False)):
        plan = fused_plan(shape)
        assert (plan.cluster > 1) == is_shared


def fused_plan(shape: tuple[int, int], arch: str = "sm_90a", **wishes: Any) -> Any:
    x = te.placeholder(shape, "float32", "X")
    func = te.create_prim_func([x, topi.nn.softmax(x)])
    sch = s_tir.Schedule(func.with_attr("target", cuda_target(arch)))
    return sch.fuse_rows(sch.get_child_blocks(sch.get_sblock("root")), **wishes)


def test_older_gpus_get_none_and_refuse_them() -> None:
    assert fused_plan((128, 131072), "sm_80").cluster == 1
    with pytest.raises(ScheduleError, match=r"clusters of 4 blocks, which sm_80 does not launch"):
        fused_plan((128, 131072), "sm_80", cluster=4)
    operator = find_operator("softmax")
    config = {**operator.default_config(), "cluster": 2}
    refusal = operator.check((64, 4096), "float16", config, architecture("sm_80"))
    assert refusal is not None
    assert operator.check((64, 4096), "float16", config, architecture("sm_90a")) is None


def test_a_plan_for_another_gpu_is_made_anew() -> None:
    sch = softmax(2, 131072)
    with decisions.collect() as made:
        text = tlx.lower(sch, target=cuda_target("sm_80")).script()
    assert "clusterCtaIdx" not in text
    (told,) = (d.text for d in made if d.maker == "fuse_rows")
    assert told.startswith("1 row a block of")
    x = drawn(2, 131072)
    report = tlx.simulate(sch, x, None, progress=False, target=cuda_target("sm_80"))
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-4)


def test_the_decision_names_the_cluster() -> None:
    with decisions.collect() as made:
        softmax(64, 131072, "float16", cluster=4, num_threads=512, keep="registers")
    (decision,) = (d for d in made if d.maker == "fuse_rows")
    assert decision.text == (
        "1 row a cluster of 4 blocks of 512 threads, 2048 lanes a row; of 8 vectors of 8 that a "
        "lane has, 8 kept in registers"
    )


def test_a_plan_without_a_cluster_is_one_of_a_block() -> None:
    sch = softmax(64, 64)
    last = sch.get_sblock("compute_1")
    noted = list(sch.get(last).annotations["layout_ext.fuse_rows"])
    sch.unannotate(last, "layout_ext.fuse_rows")
    sch.annotate(last, "layout_ext.fuse_rows", [*noted[:7], *noted[9:]])
    x = drawn(64, 64)
    report = tlx.simulate(sch, x, None, progress=False)
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


# What the simulated GPU finds where the protocol is broken.


def exchanged() -> Any:
    return device_program(softmax(2, 2048, cluster=2, num_threads=64))


def _left_out(call: Any) -> Any:
    return tirx.const(0, "int32")


def test_a_block_that_does_not_wait_is_told() -> None:
    given = exchanged()
    for number in (1, 0):
        given = changed(given, ops.CUDA_MBARRIER_WAIT, _left_out, number)
    report = tlx.simulate(given, drawn(2, 2048), None, progress=False)
    assert any("board" in one.message for one in report.hazards), report.hazards


def test_a_block_that_ends_before_the_others_have_sent_is_told() -> None:
    given = changed(exchanged(), ops.CUDA_MBARRIER_WAIT, _left_out, 1)
    report = tlx.simulate(given, drawn(2, 2048), None, progress=False)
    assert any("may have ended" in one.message for one in report.hazards), report.hazards


def test_a_block_that_has_not_begun_is_told() -> None:
    given = exchanged()
    for name in (ops.PTX_BARRIER_CLUSTER_ARRIVE, ops.PTX_BARRIER_CLUSTER_WAIT):
        given = changed(given, name, _left_out, 0)
    with pytest.raises(SimulationError, match="nothing orders that after its init"):
        tlx.simulate(given, drawn(2, 2048), None, progress=False)


def test_bytes_that_never_come_are_told() -> None:
    def fewer(call: Any) -> Any:
        return tirx.call_intrin(call.ty, call.op.name, call.args[0], tirx.const(8, "uint32"))

    given = changed(exchanged(), ops.PTX_MBARRIER_ARRIVE_EXPECT_TX, fewer, 0)
    with pytest.raises(SimulationError, match=r"arrived\[0\]"):
        tlx.simulate(given, drawn(2, 2048), None, progress=False)


@pytest.mark.costly
@pytest.mark.nvcc
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_code_compiles_without_spills(dtype: str) -> None:
    sch = softmax(128, 131072, dtype, cluster=8, keep="registers")
    code = machine_code(tlx.cuda_source(sch, target="cuda"), "sm_90a")
    assert code.spill_bytes == 0
