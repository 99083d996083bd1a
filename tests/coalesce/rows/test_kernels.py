"""What one kernel of a chain of rows does: reads, writes, vectors, where rows are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te, tirx, topi
from tvm.script import tirx as T

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext import decisions
from tvm_layout_ext.build import device_program
from tvm_layout_ext.tune.space.operator import find_operator


def fused(tensors: list[Any], **wishes: Any) -> s_tir.Schedule:
    """All blocks of a function in one kernel."""
    sch = s_tir.Schedule(te.create_prim_func(tensors).with_attr("global_symbol", "main"))
    sch.fuse_rows(sch.get_child_blocks(sch.get_sblock("root")), **wishes)
    return sch


def softmax(rows: Any, length: int, dtype: str = "float32", **wishes: Any) -> s_tir.Schedule:
    x = te.placeholder((rows, length), dtype, "X")
    wide = topi.nn.softmax(topi.cast(x, "float32"))
    return fused([x, topi.cast(wide, dtype)], **wishes)


def shares(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x.astype("float64") - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("shape", [(32, 4096), (1024, 64), (2, 32768), (96, 768)])
def test_rows_are_read_once_in_full_vectors(name: str, shape: tuple[int, int], dtype: str) -> None:
    operator = find_operator(name)
    sch = operator.schedule(operator.compute(shape, dtype), operator.default_config())
    inputs = operator.inputs(shape, dtype, np.random.default_rng(0))
    report = tlx.simulate(sch, *inputs, None, progress=False)
    assert len(device_program(sch).kernels) == 1
    assert not report.hazards
    assert sum(access.bank_conflicts for access in report.accesses) == 0
    for buffer in ("A", "B"):
        accesses = [access for access in report.accesses if access.buffer == buffer]
        assert sum(access.sectors for access in accesses) == inputs[0].nbytes // 32
        assert {access.vector_bytes for access in accesses} == {16}


@pytest.mark.parametrize(
    ("keep", "times", "scope"),
    [("registers", 1, "local"), ("shared", 1, "shared.dyn"), ("none", 3, "local")],
)
def test_a_row_is_kept_where_one_says(keep: str, times: int, scope: str) -> None:
    # Loops over a longer row are not unrolled, so nvcc keeps none of it by itself.
    length = 65536 if keep == "none" else 512
    sch = softmax(4, length, keep=keep, cluster=1)
    x = drawn(4, length)
    report = tlx.simulate(sch, x, None, progress=False)
    loads = [a for a in report.accesses if a.buffer == "X" and a.kind == "load"]
    assert sum(load.sectors for load in loads) == times * x.nbytes // 32
    assert (f'scope="{scope}"' in tlx.lower(sch).script()) or scope == "local"
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


def test_what_no_place_holds_is_read_again() -> None:
    sch = softmax(2, 131072, num_threads=1024, cluster=1)
    x = drawn(2, 131072)
    report = tlx.simulate(sch, x, None, progress=False)
    loads = sum(a.sectors for a in report.accesses if a.buffer == "X" and a.kind == "load")
    assert x.nbytes // 32 < loads < 3 * x.nbytes // 32
    np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-4)


def test_the_number_of_rows_may_be_symbolic() -> None:
    program = device_program(softmax(te.var("n"), 257))
    for rows in (1, 70):
        x = drawn(rows, 257)
        report = tlx.simulate(program, x, np.empty_like(x), progress=False)
        np.testing.assert_allclose(report.outputs["compute"], shares(x), rtol=1e-5)


def test_rows_and_columns_may_have_several_dims_and_long_indices() -> None:
    shape = [tirx.IntImm("int64", n) for n in (3, 5, 8, 16)]
    x = te.placeholder(shape, "float16", "X")
    weights, biases = (te.placeholder(shape[2:], "float16", name) for name in ("w", "b"))
    sch = fused([x, weights, biases, topi.nn.layer_norm(x, weights, biases, [2, 3])])
    a, w, b = (drawn(*s, dtype="float16") for s in ((3, 5, 8, 16), (8, 16), (8, 16)))
    report = tlx.simulate(sch, a, w, b, None, progress=False)
    away = a.astype("float64") - a.mean((2, 3), keepdims=True, dtype="float64")
    want = away / np.sqrt((away**2).mean((2, 3), keepdims=True) + 1e-5) * w + b
    np.testing.assert_allclose(report.outputs["T_layer_norm"], want, rtol=1e-2, atol=1e-2)
    assert {a.vector_bytes for a in report.accesses if a.buffer in "X"} == {16}


@pytest.mark.parametrize("length", [64, 100, 5000])
def test_argmax_leaves_with_its_value(length: int) -> None:
    x = te.placeholder((33, length), "float32", "X")
    place = topi.argmax(x, axis=1)
    value = te.compute((33,), lambda i: x[i, place[i]], "value")
    sch = fused([x, place, value])
    a = drawn(33, length)
    report = gives(sch, a, None, None, progress=False, X_red=a.argmax(1))
    np.testing.assert_array_equal(report.outputs["value"], a.max(1))


def test_a_mask_may_guard_loads() -> None:
    @T.prim_func(s_tir=True)
    def masked(X: T.Buffer((32, 40), "float32"), Y: T.Buffer((32, 48), "float32")):
        top = T.sblock_alloc_buffer((32,), "float32")
        for i, k in T.grid(32, 48):
            with T.sblock("top"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    top[vi] = T.min_value("float32")
                top[vi] = T.max(top[vi], T.if_then_else(vk < 40, X[vi, vk], T.float32(0)))
        for i, k in T.grid(32, 48):
            with T.sblock("Y"):
                vi, vk = T.axis.remap("SS", [i, k])
                Y[vi, vk] = T.if_then_else(vk < 40, X[vi, vk], T.float32(0)) - top[vi]

    sch = s_tir.Schedule(masked.with_attr("global_symbol", "main"))
    sch.fuse_rows(["top", "Y"])
    x = drawn(32, 40)
    report = tlx.simulate(sch, x, None, progress=False)
    padded = np.pad(x, ((0, 0), (0, 8)))
    np.testing.assert_array_equal(report.outputs["Y"], padded - padded.max(1, keepdims=True))


def test_the_decision_is_told() -> None:
    with decisions.collect() as made:
        softmax(1000, 64, "float16")
    (decision,) = (d for d in made if d.maker == "fuse_rows")
    assert decision.subject == "compute_1"
    assert "rows a block of" in decision.text
    assert "8 lanes a row; of 1 vector of 8 that a lane has, 1 kept in registers" in decision.text


def test_a_plan_in_an_annotation_is_checked() -> None:
    sch = softmax(64, 64)
    noted = dict(sch.get(sch.get_sblock("compute_1")).annotations)["layout_ext.fuse_rows"]
    again = s_tir.Schedule(tvm.IRModule(sch.mod.functions))
    again.unannotate(again.get_sblock("compute_1"), "layout_ext.fuse_rows")
    again.annotate(again.get_sblock("compute_1"), "layout_ext.fuse_rows", ["x", *list(noted)[1:]])
    with pytest.raises(tlx.ScheduleError, match="takes the 9 numbers of a plan"):
        tlx.lower(again)


@pytest.mark.parametrize(("lanes", "before"), [(256, True), (128, False)])
def test_weights_are_loaded_beside_a_row_of_one_vector_a_lane(lanes: int, before: bool) -> None:
    """Behind the sums they are waited for apart: 1.8 us of 16x768 where 1.3 do (H200)."""
    operator = find_operator("layer_norm")
    sch = s_tir.Schedule(operator.unscheduled((16, 768), "float32")["main"])
    sch.fuse_rows(sch.get_child_blocks(sch.get_sblock("root")), lanes=lanes)
    with tlx.cuda_target("sm_90a"):
        [kernel] = device_program(sch).kernels.values()
    lines = kernel.script().splitlines()
    first = {
        what: next(at for at, line in enumerate(lines) if what in line)
        for what in ("shfl", "= weights[", "= biases[")
    }
    shared = first.pop("shfl")
    assert [at < shared for at in first.values()] == [before] * 2
