"""Random Relax functions through the pass, on the simulated GPU, beside TVM's CPU code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.models.random_programs import module, op, random_program
from tests.models.running import TARGET, check, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext import simulate
from tvm_layout_ext.ir.walk import launches


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(500))
def test_random_functions_are_right(seed: int) -> None:
    name, program = random_program(seed)
    for one in scheduled(module(program)):
        assert one.choice.rule != "none", f"{name}: {one.choice.text}"
        assert one.choice.text.endswith(".")
        assert one.choice.refused or not one.choice.fell_back
        if not launches(one.before.body):  # TVM wrote it for GPUs alone.
            check(one)


def compute(shape: list[Any], build: Any, *others: tuple[list[Any], str]) -> tvm.IRModule:
    return relax_module(build, (shape, "float32"), *others)


def test_functions_that_launch_kernels_are_left_alone() -> None:
    places = ([8, 2, 4], "int64"), ([8, 2, 4], "float32")
    scattered = compute([8, 20, 4], lambda a, i, u: op.scatter_elements(a, i, u, 1, "add"), *places)
    for mod in (scattered, compute([33], op.argsort)):
        assert scheduled(mod) == []
        assert isinstance(tvm.compile(mod, TARGET), relax.VMExecutable)


def test_loops_beside_kernels_are_scheduled() -> None:
    # On the host they would read what only the device may.
    x, places, more = np.zeros((9, 4), "float32"), np.array([[3], [0], [8]]), np.ones((3, 4))
    points = ([3, 1], "int64"), ([3, 4], "float32")
    (scatter,) = scheduled(compute([9, 4], op.scatter_nd, *points))
    (argsort,) = scheduled(compute([33, 4], lambda a: op.argsort(a, 0, dtype="int32")))
    values = np.random.default_rng(0).permutation(132).reshape(33, 4).astype("float32")
    x[[3, 0, 8]] = 1
    for one, given, want in (
        (scatter, (np.zeros_like(x), places, more.astype("float32")), x),
        (argsort, (values,), values.argsort(0)),
    ):
        assert one.choice.rule == "dlight"
        func = one.after.with_attr("global_symbol", "main")
        report = simulate(func, *given, None, target=TARGET, progress=False)
        np.testing.assert_array_equal(report.outputs[func.params[-1].name], want)


def test_what_nobody_reads_is_not_computed() -> None:
    # A norm of fixed statistics copies these, and the fused function does not return them.
    def norm(*a: Any) -> Any:
        return op.nn.batch_norm(*a, axis=1, training=False)[0]

    lowered = relax.transform.LegalizeOps()(compute([5, 17, 4], norm, *[([17], "float32")] * 4))
    one = only(lowered)
    assert one.choice.text == "T_add_1 direct."
    check(one)


@pytest.mark.parametrize("length", [1, 40])
def test_maxima_of_which_the_place_alone_is_asked_are_not_stored(length: int) -> None:
    check(only(compute([length, 3], lambda a: op.argmax(a, axis=0))))


def test_quotients_of_dims_of_one_element_do_not_hide_rows() -> None:
    def norm(*a: Any) -> Any:
        return op.nn.group_norm(*a, 1, 1, [2, 3])

    check(only(compute([64, 1, 8, 3], norm, *[([1], "float32")] * 2)), "rows")


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("places", ["n55", "3n", "nn", "n64"])
def test_symbolic_sums_of_several_axes_do_not_race(places: str, keep: bool) -> None:
    n = tirx.Var("n", "int64")
    shapes = {"n55": [n, 5, 5], "3n": [3, n], "nn": [n, n], "n64": [n, 64]}
    for one in scheduled(compute(shapes[places], lambda a: op.sum(a, keepdims=keep))):
        check(one)
        if places in ("n55", "n64"):
            assert one.choice.rule == "blocks"


def test_functions_without_loops_have_one_thread() -> None:
    # Its reshape from no dims to none is dropped.
    check(only(compute([3, 5], op.sum)), "blocks")


def test_products_of_one_term_are_no_matrices() -> None:
    (one,) = scheduled(compute([33, 1], op.matmul, ([1, 5], "float32")))
    assert one.choice.rule in ("blocks", "rows")
    check(one)


@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
def test_places_may_be_floats_that_were_rounded(method: str) -> None:
    def resized(a: Any) -> Any:
        return op.image.resize2d(a, [7, 5], layout="NCHW", method=method)

    check(only(compute([1, 3, 4, 6], resized)), "blocks")
