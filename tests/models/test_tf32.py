"""Products of ``float32`` are rounded to tf32, where that is allowed and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax, s_tir, tirx
from tvm.ir.expr import GenericConst
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.cpu import by_cpu
from tests.models.running import TARGET, Scheduled, array_of, check, fused, only, scheduled
from tests.models.test_convolutions import convolution
from tests.programs.relaxed import relax_module
from tvm_layout_ext import te
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.gpu.tf32 import rounded_to_tf32
from tvm_layout_ext.ir.annotations import INPUT_PRECISION, TF32
from tvm_layout_ext.ir.queries import blocks_in, nodes_of
from tvm_layout_ext.models.tf32 import CONV, KINDS, MATMUL, allow_tf32, to_tf32
from tvm_layout_ext.schedules._generic import operator_of
from tvm_layout_ext.transform.mark_annotated import is_annotated

WIDE = "float32"
#: What is next to 1 and 2 in float32 and in tf32, zeros, the largest numbers and what is none.
_ULP, _LAST = np.float32(2**-23), np.float32(2**-10)
EDGES = np.float32(
    [
        *(0, -0.0, 1, -1, 2048, 1 + _ULP, 1 + _LAST, 1 + _LAST / 2, 2 - _ULP, 2 - _LAST),
        *(1e38, -1e38, np.inf, -np.inf, np.nan, -np.nan),
    ]
)


def exact(one: Scheduled, rule: str = "") -> None:
    """Fail unless a function is right for numbers that tf32 has."""
    check(
        one, rule, lambda given: rounded_to_tf32(given) if isinstance(given, np.ndarray) else given
    )


def is_rounded(func: tirx.PrimFunc) -> bool:
    """Whether a product of a function may round."""
    return any(one.annotations.get(INPUT_PRECISION) == TF32 for one in blocks_in(func.body))


@pytest.mark.costly
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("rule", "image", "weight", "attrs"),
    [
        ("warpgroups", (2, 64, 8, 8), (72, 64, 3, 3), {"padding": 1}),
        ("warpgroups", ("n", 32, 8, 8), (72, 32, 1, 1), {}),
        ("warpgroups", (1, 16, 24, 8), (24, 16, 3, 5), {"padding": [1, 2]}),
        ("warpgroups", (2, 3, 16, 16), (16, 3, 7, 7), {"padding": 3, "strides": 2}),
        ("warpgroups", (1, 64, 9, 10), (64, 64, 3, 3), {"padding": 2, "dilation": 2}),
        ("warpgroups", (1, 16, 9, 9), (16, 4, 3, 3), {"padding": 1, "groups": 4}),
        ("warpgroups", (2, 4, 9, 6), (8, 4, 3, 3), {"padding": [1, 0, 2, 1], "strides": 2}),
        ("windows", (1, 16, 9, 9), (16, 1, 3, 3), {"padding": 1, "groups": 16}),
        ("warpgroups", (2, 32, 4, 6, 6), (72, 32, 3, 3, 3), {"padding": 1}),
    ],
)
def test_a_convolution_of_float32_is_multiplied_as_tf32(
    rule: str, image: Any, weight: Any, attrs: Any
) -> None:
    found = scheduled(allow_tf32(convolution(image, weight, WIDE, **attrs), [CONV]))
    *rest, one = sorted(found, key=lambda f: "conv" in f.name)
    exact(one, rule)
    assert ("cores as tf32" in one.choice.text) == (rule != "windows")
    assert {other.choice.rule for other in rest} <= {"blocks"}


def layers(x: Any, first: Any, second: Any) -> Any:
    return op.matmul(op.nn.relu(op.matmul(x, op.permute_dims(first))), op.permute_dims(second))


def linears() -> tvm.IRModule:
    return relax_module(layers, (96, 64), (128, 64), (64, 128), dtype=WIDE)


@pytest.mark.parametrize("kinds", [(), (CONV,), (MATMUL,), KINDS])
def test_a_kind_of_products_is_rounded_where_it_is_allowed(kinds: Any) -> None:
    linear = scheduled(allow_tf32(linears(), kinds))
    conv = scheduled(allow_tf32(convolution((1, 64, 8, 8), (64, 64, 3, 3), WIDE), kinds))
    for kind, found in ((MATMUL, linear), (CONV, conv)):
        rules = {one.choice.rule for one in found if is_rounded(one.before)}
        assert rules == ({"warpgroups"} if kind in kinds else set())
        assert any(one.choice.rule == "threads" for one in found) == (kind not in kinds)


def test_two_products_are_right_and_only_what_the_second_reads_is_rounded_before() -> None:
    first, second = sorted(scheduled(allow_tf32(linears(), KINDS)), key=lambda f: len(f.name))[::-1]
    assert ("to_tf32" in first.name, "to_tf32" in second.name) == (True, False)
    exact(second, "warpgroups")
    report = tlx.simulate(first.program, *inputs(first), progress=False)
    (got,) = report.outputs.values()
    assert not report.hazards
    np.testing.assert_array_equal(got, rounded_to_tf32(got))


@pytest.mark.parametrize("keys", [77, 70])
def test_weighted_values_go_to_mma(keys: int) -> None:
    """TMA copies no rows of so many keys, along which ``wgmma`` wants values of 32 bits to lie."""
    mod = relax_module(lambda p, v: op.matmul(p, v), (3, 64, keys), (3, keys, 64), dtype=WIDE)
    one = only(allow_tf32(mod, [MATMUL]))
    exact(one, "tensor cores")
    assert "cores as tf32" in one.choice.text


def inputs(one: Scheduled) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rounded_to_tf32(array_of(param, rng)) for param in one.before.params]


def test_a_gpu_without_tf32_multiplies_in_full() -> None:
    old = tlx.cuda_target("sm_75")
    mod = tlx.lower_relax(allow_tf32(linears(), KINDS), old)
    schedule = tlx.DefaultSchedule()
    with old:
        schedule(mod)
    assert {one.rule for one in schedule.choices} == {"threads"}
    assert "to_tf32" not in str(mod)


def shortcut(x: Any, w: Any) -> Any:
    made = op.nn.relu(x)
    return op.add(op.nn.conv2d(made, w, padding=1), made)


def test_a_shortcut_reads_what_is_rounded() -> None:
    """Else a value would be stored twice, as it is and rounded."""
    mod = relax_module(shortcut, (1, 64, 8, 8), (64, 64, 3, 3), dtype=WIDE)
    assert "to_tf32" not in str(fused(mod))
    made = fused(allow_tf32(mod, KINDS))
    (kernel,) = {gv.name_hint for gv in made.functions if "to_tf32" in gv.name_hint}
    assert "relu" in kernel


def after_norm(x: Any, w: Any) -> Any:
    made = op.nn.relu(x)
    return op.add(op.matmul(made, w), made)


def test_what_is_added_to_a_product_of_matrices_is_not_rounded() -> None:
    mod = allow_tf32(relax_module(after_norm, (64, 64), (64, 64), dtype=WIDE), KINDS)
    names = {one.name for one in scheduled(mod)}
    assert {"relu", "to_tf32"} < names
    for one in scheduled(mod):
        exact(one)


def test_results_that_products_read_stay_as_they_are() -> None:
    def build(x: Any, w: Any) -> Any:
        made = op.nn.relu(x)
        return made, op.matmul(made, w)

    def tupled(x: Any, w: Any) -> Any:
        return relax.Tuple([*build(x, w)])

    x = np.float32([[1 + 2**-20] * 64] * 64)
    mod = allow_tf32(relax_module(tupled, (64, 64), (64, 64), dtype=WIDE), KINDS)
    same, made = by_cpu(tlx.lower_relax(mod, TARGET), [x, np.eye(64, dtype=WIDE)])
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(made, np.float32(1))


def kept(convolved: Any) -> tvm.IRModule:
    """A value that a convolution reads, and someone else who needs all of its bits."""

    def build(x: Any, w: Any) -> Any:
        made = op.add(x, relax.const(np.float32(2**-12)))
        return relax.Tuple([op.nn.conv2d(made, w, padding=1), *convolved(made)])

    return allow_tf32(relax_module(build, (1, 16, 4, 4), (16, 16, 3, 3), dtype=WIDE), [CONV])


@pytest.mark.parametrize(
    "other",
    [
        lambda made: [made],
        lambda made: [op.subtract(made, relax.const(np.float32(1)))],
        lambda made: [op.astype(op.multiply(made, relax.const(np.float32(2**12))), "int64")],
        lambda made: [op.sum(made, [2, 3])],
    ],
)
def test_a_convolution_rounds_no_bits_that_others_need(other: Any) -> None:
    mod, ones = kept(other), np.ones((1, 16, 4, 4), WIDE)
    weight = np.zeros((16, 16, 3, 3), WIDE)
    want, got = by_cpu(mod, [ones, weight]), by_cpu(tlx.lower_relax(mod, TARGET), [ones, weight])
    np.testing.assert_array_equal(got[1], want[1])


def test_products_that_tensor_cores_do_not_multiply_are_not_rounded() -> None:
    def row(x: Any, w: Any) -> Any:
        return op.matmul(op.nn.relu(x), op.permute_dims(w))

    def depthwise(x: Any, w: Any) -> Any:
        return op.nn.conv2d(op.nn.relu(x), w, padding=1, groups=16)

    def single(x: Any, w: Any) -> Any:
        return op.nn.conv2d(op.nn.relu(x), w)

    for build, *shapes in (
        (row, (1, 64), (64, 64)),
        (row, (1, 1, 64), (64, 64)),
        (row, (32, 64), (1, 64)),
        (depthwise, (1, 16, 9, 9), (16, 1, 3, 3)),
        (single, (1, 16, 9, 9), (1, 16, 3, 3)),
        (single, (1, 1, 9, 9), (16, 1, 1, 1)),
    ):
        mod = allow_tf32(relax_module(build, *shapes, dtype=WIDE), KINDS)
        assert "to_tf32" not in str(fused(mod))


def test_a_product_that_may_round_is_still_a_sum_of_rows() -> None:
    def row(x: Any, w: Any) -> Any:
        return op.multiply(op.matmul(x, w), relax.const(np.float32(2)))

    one = only(allow_tf32(relax_module(row, (1, 256), (256, 128), dtype=WIDE), KINDS))
    plain = only(relax_module(row, (1, 256), (256, 128), dtype=WIDE))
    assert (one.choice.rule, one.choice.text) == (plain.choice.rule, plain.choice.text)
    assert not is_annotated(product())


def test_a_constant_of_several_products_stays_one() -> None:
    weight = relax.const(np.random.default_rng(0).standard_normal((64, 64)).astype(WIDE))

    def build(x: Any) -> Any:
        turned = op.permute_dims(weight)
        for _ in range(3):
            x = op.nn.relu(op.matmul(x, turned))
        return op.matmul(x, turned)

    made = fused(allow_tf32(relax_module(build, (64, 64), dtype=WIDE), KINDS))
    found = {one.__chandle__() for one in nodes_of(made["main"]) if isinstance(one, GenericConst)}
    assert len(found) == 1


def test_the_largest_constants_stay_finite() -> None:
    largest = np.finfo(WIDE).max
    assert np.isfinite(rounded_to_tf32(np.float32([largest, -largest]))).all()


def angles(places: Any, frequencies: Any) -> Any:
    return op.cos(op.matmul(op.add(places, places), frequencies))


def test_products_of_one_term_are_not_rounded() -> None:
    """4097 is no number of tf32."""
    mod = allow_tf32(relax_module(angles, (64, 1), (1, 32), dtype=WIDE), KINDS)
    assert not any(is_rounded(one.before) for one in scheduled(mod))
    assert "to_tf32" not in str(fused(mod))


def test_constants_are_rounded_while_compiling() -> None:
    weight = np.float32([[1 + 2**-11 + 2**-20] * 8] * 16)

    def build(x: Any) -> Any:
        turned = op.permute_dims(relax.const(weight))
        return op.matmul(x, turned)

    mod = allow_tf32(relax_module(build, (16, 8), dtype=WIDE), KINDS)
    (got,) = by_cpu(tlx.lower_relax(mod, TARGET), [np.eye(16, 8, dtype=WIDE)])
    np.testing.assert_array_equal(got[:8], np.float32(1 + 2**-10))


def test_inputs_and_results_are_left_as_they_are() -> None:
    def build(x: Any, w: Any) -> Any:
        return op.matmul(x, w)

    mod = allow_tf32(relax_module(build, (32, 64), (64, 32), dtype=WIDE), KINDS)
    assert "to_tf32" not in str(fused(mod))


def rounding(shape: Any) -> Scheduled:
    return only(relax_module(to_tf32, shape, dtype=WIDE))


def test_rounding_leaves_numbers_of_tf32_and_what_is_none() -> None:
    one = rounding((64, EDGES.size))
    x = np.broadcast_to(EDGES, (64, EDGES.size)).copy()
    report = tlx.simulate(one.program, x, progress=False)
    (got,) = (output[0] for output in report.outputs.values())
    has = np.isnan(EDGES) | (rounded_to_tf32(EDGES) == EDGES)
    np.testing.assert_array_equal(got[has], EDGES[has])
    assert (np.isnan(got) == np.isnan(EDGES)).all()


@given(st.integers(0, 2**32 - 1))
def test_rounding_is_off_by_a_part_of_the_last_bit_and_by_nothing_in_the_mean(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(-20, 20, (8, 512))).astype(WIDE) * rng.choice([-1, 1], (8, 512))
    x = x.astype(WIDE)
    (got,) = by_cpu(relax_module(to_tf32, x.shape, dtype=WIDE), [x])
    np.testing.assert_array_equal(got, rounded_to_tf32(got))
    last = 2.0 ** (np.floor(np.log2(np.abs(x.astype("f8")))) - 10)
    off = (got.astype("f8") - x) / last * np.sign(x)
    assert np.abs(off).max() <= 0.7
    assert abs(off.mean()) < 0.03  # Five deviations of the mean of 4,096
    assert np.abs(rounded_to_tf32(x).astype("f8") - x).max() <= (last / 2).max()


def product(sizes: tuple[int, int, int] = (128, 128, 64)) -> tirx.PrimFunc:
    """A @ B^T that may be rounded."""
    m, n, k = sizes
    A, B = te.placeholder((m, k), WIDE, name="A"), te.placeholder((n, k), WIDE, name="B")
    r = te.reduce_axis((0, k), name="r")
    attrs = {INPUT_PRECISION: TF32}
    C = te.compute((m, n), lambda i, j: te.sum(A[i, r] * B[j, r], axis=r), name="C", attrs=attrs)
    return te.create_prim_func([A, B, C])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_auto_takes_tf32_where_a_block_allows_it(arch: str) -> None:
    target = tlx.cuda_target(arch)
    with target:
        sch = s_tir.Schedule(product())
        found = sch.use_tensor_core("C", tile=(128, 128, 32))
        assert "tf32" in found.instruction
        sch = s_tir.Schedule(product())
        assert "tf32" in sch.gemm("C", (64, 64, 32), (2, 2), 2).tensor_core.instruction
        assert not operator_of(product()).off_tensor_cores
    a, b = (rounded_to_tf32(array_of(p, np.random.default_rng(1))) for p in product().params[:2])
    report = tlx.simulate(sch, a, b, target=target, progress=False)
    assert not report.hazards
    np.testing.assert_allclose(report.outputs["C"], a @ b.T, rtol=1e-5)


def test_without_the_annotation_it_is_refused() -> None:
    sch = s_tir.Schedule(product())
    sch.unannotate(sch.get_sblock("C"), INPUT_PRECISION)
    with TARGET, pytest.raises(ScheduleError, match="float32 only as tf32"):
        sch.use_tensor_core("C", tile=(128, 128, 32))


def test_mixed_precision_allows_all_kinds_and_changes_nothing_else() -> None:
    mod = linears()
    after = tlx.MixedPrecision(TF32)(mod)
    assert [*after.attrs["layout_ext.allow_tf32"]] == sorted(KINDS)
    tvm.ir.assert_structural_equal(after["main"], mod["main"])
