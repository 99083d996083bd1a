"""A schedule for any function: which one it gets, what it computes, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import s_tir, tirx

from tests.programs.products import multiplied
from tvm_layout_ext import ScheduleError, cuda_target, decisions, knob, lower, simulate, te
from tvm_layout_ext.build import check_fits, device_program
from tvm_layout_ext.schedules import gemm, matmul
from tvm_layout_ext.schedules._generic import COALESCE_KNOBS, operator_of
from tvm_layout_ext.tune.measure.reference.problem import WrongResultError, require_close
from tvm_layout_ext.tune.measure.reference.reference import Reference, draw
from tvm_layout_ext.tune.space.candidate import traced
from tvm_layout_ext.tune.space.knobs import Refusal
from tvm_layout_ext.tune.space.operator import Operator
from tvm_layout_ext.tune.space.task import Task, make_task

TARGET = cuda_target("sm_90a")


def linear(m: int, n: int, k: int, dtype: str = "float16", sums: str = "float32") -> tirx.PrimFunc:
    """``relu(A @ B + bias)`` as three blocks."""
    A, B, product = multiplied((m, n, k), dtype, sums, ("A", "B", "product"))
    bias = te.placeholder((n,), dtype, name="bias")
    add = te.compute((m, n), lambda i, j: product[i, j] + bias[j].astype(sums), name="add")
    zero = te.const(0, sums)
    out = te.compute((m, n), lambda i, j: tirx.max(add[i, j], zero).astype(dtype), name="out")
    return te.create_prim_func([A, B, bias, out])


def softmax(rows: int, columns: int, axis: int = 1) -> tirx.PrimFunc:
    """Four blocks, of which two are reductions, of rows or of columns."""
    shape = rows, columns
    A = te.placeholder(shape, "float32", name="A")
    k, r = (te.reduce_axis((0, shape[axis]), name=name) for name in "kr")

    def at(own: Any, along: Any) -> tuple[Any, Any]:
        return (own, along) if axis else (along, own)

    kept = (shape[1 - axis],)
    most = te.compute(kept, lambda i: te.max(A[at(i, k)], k), name="most")
    power = te.compute(shape, lambda *i: tirx.exp(A[i] - most[i[1 - axis]]), name="power")
    total = te.compute(kept, lambda i: te.sum(power[at(i, r)], r), name="total")
    out = te.compute(shape, lambda *i: power[i] / total[i[1 - axis]], name="out")
    return te.create_prim_func([A, out])


def gather(rows: int, columns: int, picked: int) -> tirx.PrimFunc:
    """Rows of a table by number."""
    table = te.placeholder((rows, columns), "float16", name="table")
    which = te.placeholder((picked,), "int64", name="which")
    out = te.compute((picked, columns), lambda i, j: table[which[i], j], name="out")
    return te.create_prim_func([table, which, out])


def task_of(operator: Operator) -> Task:
    return make_task(operator, (), operator.dtypes[0])


def check_default(operator: Operator) -> np.ndarray:
    """Simulate the default schedule, replayed from its trace, and compare with the reference."""
    task = task_of(operator)
    sch = traced(task, task.space.default())
    replayed = s_tir.Schedule(task.unscheduled)
    sch.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert tvm_ffi.structural_equal(replayed.mod, sch.mod)
    inputs = task.draw(0)
    report = simulate(replayed.mod, *inputs, target=TARGET, progress=False)
    assert not report.hazards
    (got,) = report.outputs.values()
    require_close(got, operator.reference(*inputs), operator.tolerance((), task.dtype))
    return got


@pytest.mark.costly
@pytest.mark.parametrize("shape", [(64, 64, 64), (70, 65, 33)])
def test_products_go_to_tensor_cores_with_what_follows_them(shape: tuple[int, int, int]) -> None:
    operator = operator_of(linear(*shape))
    assert operator.knobs == gemm.KNOBS
    task = task_of(operator)
    blocks = str(task.module(task.space.default()))
    # Rows of 33 halves are none that TMA takes.
    assert ("layout_ext.warpgroup" if shape[2] == 64 else "layout_ext.tensor_core") in blocks
    check_default(operator)


def stored(
    a_transposed: bool, b_transposed: bool, dtype: str, sums: str, scale: int = 1
) -> tirx.PrimFunc:
    """A product of operands that lie along K or not, and twice its result."""
    m, n, k = 256 * scale, 512 * scale, 1024 * scale
    stores = {"a_transposed": a_transposed, "b_transposed": b_transposed}
    A, B, product = multiplied((m, n, k), dtype, sums, ("A", "B", "product"), **stores)
    out = te.compute((m, n), lambda i, j: product[i, j] * te.const(2, sums), name="out")
    return te.create_prim_func([A, B, out])


@pytest.mark.matrix
@pytest.mark.parametrize("a_transposed", [False, True])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_bytes_of_a_product_were_those_of_operands_stored_m_by_k_and_k_by_n(
    a_transposed: bool, b_transposed: bool
) -> None:
    """Padded tiles of N x K are larger: blocks that no GPU holds were built."""
    task = task_of(operator_of(stored(a_transposed, b_transposed, "int8", "int32")))
    tile = {"tile_m": 128, "tile_n": 128, "tile_k": 128, "warps_m": 2, "warps_n": 4}
    changes = {"swizzle": "pad", "stages": 3, "prefetch": 0}
    config = gemm.OPERATOR.default_config() | tile | changes
    size = gemm.shared_bytes("int8", config, b_transposed, a_transposed)
    assert size == {0: 104_448, 1: 107_520, 2: 110_592}[1 - a_transposed + b_transposed]
    assert check_fits(lower(task.module(config), target=TARGET), TARGET) == size
    for room, legal in ((size, True), (size - 1, False)):
        small = replace(task.architecture, shared_per_block=room)
        assert (task.operator.check((), task.dtype, config, small) is None) == legal


@pytest.mark.parametrize(("b_transposed", "name"), [(True, "gemm_nt"), (False, "gemm")])
def test_defaults_of_a_product_are_those_of_the_operator_with_its_layout(
    b_transposed: bool, name: str
) -> None:
    operator = operator_of(stored(False, b_transposed, "int8", "int32", scale=16))
    ready = make_task(name, (4096, 8192, 16384), "int8").space.default()
    assert task_of(operator).space.default() == ready
    assert (ready["wgmma"] == "none") != b_transposed


def test_rows_and_their_sums_are_one_kernel() -> None:
    operator = operator_of(softmax(33, 200))
    knobs = {"lanes", "threads", "vector_bytes", "keep", "cluster"}
    assert {knob.name for knob in operator.knobs} == knobs
    np.testing.assert_allclose(check_default(operator).sum(1), 1, rtol=1e-5)
    task = task_of(operator)
    assert len(device_program(task.module(task.space.default())).kernels) == 1


def test_blocks_without_products_are_coalesced_each() -> None:
    operator = operator_of(softmax(200, 33, axis=0))
    assert operator.knobs == COALESCE_KNOBS
    np.testing.assert_allclose(check_default(operator).sum(0), 1, rtol=1e-5)
    task = task_of(operator)
    assert str(task.module(task.space.default())).count('"layout_ext.coalesced"') == 3


def test_single_precision_is_not_cut_to_tf32_and_that_is_told() -> None:
    with decisions.collect() as made:
        operator = operator_of(linear(40, 24, 16, "float32"))
    assert operator.knobs == matmul.KNOBS
    assert "float32 only as tf32" in operator.off_tensor_cores["product"]
    assert [(one.maker, one.subject) for one in made if one.refused] == [("operator_of", "product")]
    check_default(operator)


def test_a_row_sum_over_a_product_is_a_kernel_beside_it() -> None:
    """The readers of a product were taken for part of its kernel, and stayed on the host."""
    A, B, product = multiplied((64, 64, 64), names=("A", "B", "product"))
    r = te.reduce_axis((0, 64), name="r")
    total = te.compute((64,), lambda i: te.sum(product[i, r], r), name="total")
    operator = operator_of(te.create_prim_func([A, B, total]))
    assert operator.knobs == gemm.KNOBS
    check_default(operator)


def test_indices_among_the_inputs_stay_inside_what_they_index() -> None:
    operator = operator_of(gather(7, 64, 500))
    _, which = task_of(operator).draw(0)
    assert (which.min(), which.max()) == (0, 6)
    check_default(operator)


def test_tiles_that_the_instruction_does_not_divide_are_refused() -> None:
    task = task_of(operator_of(linear(64, 64, 64, "int8", "int32")))
    config = task.space.default()
    check = task.operator.check((), task.dtype, config | {"tile_k": 16}, task.architecture)
    assert isinstance(check, Refusal)
    assert check.rule == "tile of instruction"
    assert "no multiple of the 32" in check.text


def test_schedule_of_your_own() -> None:
    def coalesced(sch: s_tir.Schedule, config: Any) -> None:
        sch.compute_inline("product_like")
        sch.auto_coalesce("out", num_threads=config["threads"])

    A = te.placeholder((64, 64), "float32", name="A")
    twice = te.compute((64, 64), lambda i, j: A[i, j] * 2, name="product_like")
    out = te.compute((64, 64), lambda i, j: twice[j, i], name="out")
    func = te.create_prim_func([A, out])
    knobs = [knob("threads", (128, 256, 512), default=256)]

    def few(config: Any, architecture: Any) -> Refusal | None:
        return Refusal("too many", "512 idle.") if config["threads"] == 512 else None

    operator = operator_of(func, coalesced, knobs, check=few, name="twice")
    assert operator.name.startswith("twice-")
    assert [c["threads"] for c in task_of(operator).space.legal] == [128, 256]
    check_default(operator)


def test_name_tells_functions_apart_and_is_the_same_in_every_process() -> None:
    one, again, other = (operator_of(softmax(8, n)).name for n in (64, 64, 65))
    assert one == again != other
    assert one == "out-" + one[-8:]


def test_functions_that_cannot_be_tuned_are_refused() -> None:
    A, n = te.placeholder((8,), "float32", name="A"), te.var("n")
    B, C = (te.compute((8,), lambda i: A[i] + 1, name=name) for name in "BC")
    D = te.placeholder((n,), "float32", name="D")
    E = te.compute((n,), lambda i: D[i], name="E")
    one = te.create_prim_func([A, B])
    for given, message in (
        ((te.create_prim_func([A, B, C]),), r"writes B, C; a function to tune has one output"),
        ((te.create_prim_func([D, E]),), r"^Parameter D is no buffer whose shape is all num"),
        ((one.with_attr("tirx.is_scheduled", True),), "scheduled already"),
        ((one, lambda sch, config: None), "needs knobs to tune"),
        ((one, None, [knob("k", (1,))]), "belong to a schedule"),
        ((3,), "Cannot tune a int"),
        ((tvm.IRModule({}),), "one function is wanted, not of 0"),
    ):
        with pytest.raises(ScheduleError, match=message):
            operator_of(*given)


def test_reference_is_computed_in_float64() -> None:
    func = linear(5, 6, 300, sums="float16")
    a, b, bias = draw(func, np.random.default_rng(0))
    want = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    np.testing.assert_array_equal(Reference(func)(a, b, bias), want.astype(np.float16))


_OF_ONE = {
    **{name: getattr(np, name) for name in ("exp", "tanh", "sqrt", "log")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf),
}


@pytest.mark.parametrize("name", _OF_ONE)
def test_reference_of_functions_of_one_number(name: str) -> None:
    A = te.placeholder((64,), "float16", name="A")
    out = te.compute((64,), lambda i: getattr(tirx, name)(A[i]), name="out")
    func = te.create_prim_func([A, out])
    (a,) = draw(func, np.random.default_rng(0))
    assert (a.min() > 0) == (name in ("sqrt", "log", "rsqrt"))
    got, want = Reference(func)(a).astype(np.float64), _OF_ONE[name](a.astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=2e-3)


def test_tolerance_is_none_for_copies_and_notices_a_lost_step_of_a_sum() -> None:
    assert Reference(gather(7, 64, 5)).tolerance().atol == 0
    func = linear(16, 16, 256)
    a, b, bias = draw(func, np.random.default_rng(0))
    reference = Reference(func)
    want, tolerance = reference(a, b, bias), reference.tolerance()
    require_close(want, want, tolerance)
    a[:, 240:] = 0
    with pytest.raises(WrongResultError):
        require_close(reference(a, b, bias), want, tolerance)
