"""Products of one factor whose sums a tile has together, as those of a gated MLP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs import warpgroups as w
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.ir.queries import nodes_in
from tvm_layout_ext.schedules.gemm_gated import OPERATOR, multiply
from tvm_layout_ext.transform.hopper import plan

SHAPE = (130, 136, 72)


def scheduled(
    shape: tuple[int, int, int], tile: str, dtype: str = "float16", group: int = 2
) -> s_tir.Schedule:
    with w.SM90A:
        return OPERATOR.schedule(OPERATOR.compute(shape, dtype), {"tile": tile, "group": group})


@pytest.mark.parametrize(
    ("shape", "tile", "dtype"),
    [
        (SHAPE, "128x64", "float16"),
        ((200, 264, 136), "128x128", "bfloat16"),
        ((300, 200, 72), "256x80", "float16"),
        ((70, 264, 200), "64x128", "float16"),
        # Rows of C that TMA cannot store.
        ((130, 37, 64), "128x72", "float16"),
        # Columns take the instruction's rows.
        ((16, 200, 136), "16x64", "float16"),
        ((9, 136, 64), "8x128", "bfloat16"),
    ],
)
def test_gated_products_are_those_of_numpy(
    shape: tuple[int, int, int], tile: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "MULTIPROCESSORS", 2)
    rng = np.random.default_rng(sum(shape))
    a, b = (rng.standard_normal(s) for s in ((shape[0], shape[2]), (2, shape[1], shape[2])))
    arrays = [a.astype(w.TYPES[dtype]), (b * shape[2] ** -0.5).astype(w.TYPES[dtype])]
    report = tlx.simulate(scheduled(shape, tile, dtype), *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    (found,) = report.outputs.values()
    want, allowed = OPERATOR.reference(*arrays), OPERATOR.tolerance(shape, dtype)
    assert np.abs(want.astype(float)).max() > 1
    np.testing.assert_allclose(
        found.astype(float), want.astype(float), allowed.rtol, 10 * allowed.atol
    )


def _program(weights: str, read: str = "both", sums: str = "float32") -> Any:
    """``max(x @ w0, 0) * (x @ w1)`` by one weight or two, or one stored K x N."""
    m, n, k = 130, 200, 72
    x = te.placeholder((2, m, k) if weights == "factors" else (m, k), "float16", name="x")
    r = te.reduce_axis((0, k), name="r")
    own = te.compute(
        (2, m, k), lambda h, i, t: x[h, i, t] if weights == "factors" else x[i, t], name="own"
    )
    if weights == "two":
        given = [te.placeholder((n, k), "float16", name=f"w{i}") for i in range(2)]
        both = te.compute(
            (2, n, k),
            lambda h, j, t: te.if_then_else(h < 1, given[0][j, t], given[1][j, t]),
            name="both",
        )
    elif weights == "apart":
        given = [te.placeholder((n + i, k), "float16", name=f"w{i}") for i in range(2)]
        both = te.compute(
            (2, n, k),
            lambda h, j, t: te.if_then_else(h < 1, given[0][j, t], given[1][j + 1, t]),
            name="both",
        )
    else:
        shape = (2, k, n) if weights == "turned" else (2, n, k)
        given = [te.placeholder(shape, "float16", name="w")]
        both = given[0]

    def term(h: Any, i: Any, j: Any) -> Any:
        b = both[h, r, j] if weights == "turned" else both[h, j, r]
        return own[h, i, r].astype(sums) * b.astype(sums)

    product = te.compute((2, m, n), lambda h, i, j: te.sum(term(h, i, j), axis=r), name="product")

    def value(h: Any, i: Any, j: Any) -> Any:
        first, second = product[h * 2, i, j], product[h * 2 + 1, i, j]
        if read == "more":
            second = product[h * 2 + 1, i, j] * product[h * 2, i, te.min(j, 3)]
        zero = te.const(0, "float32")
        return (te.max(first.astype("float32"), zero) * second.astype("float32")).astype("float16")

    return te.create_prim_func([x, *given, te.compute((1, m, n), value, name="out")])


def _made(
    weights: str, tile: str = "128x64", read: str = "both", sums: str = "float32"
) -> s_tir.Schedule:
    sch = s_tir.Schedule(_program(weights, read, sums).with_attr("global_symbol", "main"))
    with w.SM90A:
        multiply(sch, "product", "out", {"tile": tile, "group": 1})
    return sch


@pytest.mark.parametrize(
    ("weights", "tile", "sums"),
    [
        ("two", "128x64", "float32"),
        ("two", "48x64", "float32"),
        ("turned", "128x64", "float32"),
        ("one", "128x64", "float16"),
    ],
)
def test_weights_lie_in_one_buffer_or_two(weights: str, tile: str, sums: str) -> None:
    rng = np.random.default_rng(3)
    sch = _made(weights, tile, sums=sums)
    shapes = [tuple(map(int, p.shape)) for p in sch.mod["main"].params[:-1]]
    arrays = [(rng.standard_normal(s) * 0.3).astype("float16") for s in shapes]
    report = tlx.simulate(sch, *arrays, target=w.SM90A, progress=False)
    assert report.hazards == []
    x, *given = (one.astype(float) for one in arrays)
    both = given if len(given) == 2 else given[0]
    first, second = (x @ (one if weights == "turned" else one.T) for one in both)
    (found,) = report.outputs.values()
    np.testing.assert_allclose(found[0].astype(float), np.maximum(first, 0) * second, 4e-3, 1e-2)


def test_one_instruction_has_the_columns_of_both() -> None:
    """A tile of A is copied once, one of B in a box for each product."""
    program = tlx.device_program(scheduled((256, 128, 64), "128x128"), target=w.SM90A)
    (kernel,) = program.kernels.values()
    names = [str(getattr(one.op, "name", "")) for one in nodes_in(kernel.body, tvm.ir.Call)]
    kinds = ("cp_async_bulk_tensor_g2s_cluster", "wgmma_f16_ss")
    loads, products = (names.count(f"tirx.ptx.{one}") for one in kinds)
    assert (loads, products, kernel.script().count("m64n256k16")) == (3, 4, 4)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: _made("factors"), "share 0 factors; those that share one are legal"),
        (lambda: _made("apart"), "the same place in buffers of one shape is legal"),
        (lambda: _made("turned", "128x72"), "neighbours in memory lie along N; multiples of 64"),
        (lambda: _made("one", "128x136"), "take wgmma of 272 columns of float16"),
        (lambda: _made("one", "256x128"), "A thread would hold 256 sums"),
    ],
)
def test_what_members_cannot_have_is_refused(made: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        tlx.device_program(made(), target=w.SM90A)


def test_clusters_of_members_are_refused() -> None:
    sch = s_tir.Schedule(_program("one").with_attr("global_symbol", "main"))
    with w.SM90A:
        multiply(sch, "product", "out", {"tile": "128x64", "group": 1})
    loops = sch.get_loops("product_o")
    sch.cluster(loops[0], 2, multicast=True)
    with pytest.raises(ScheduleError, match="sums of 2 products; only clusters of 1 are legal"):
        tlx.device_program(sch, target=w.SM90A)


def test_a_schedule_of_members_replays_from_its_trace() -> None:
    sch = scheduled(SHAPE, "128x64")
    fresh = s_tir.Schedule(
        te.create_prim_func(OPERATOR.compute(SHAPE, "float16")).with_attr("global_symbol", "main")
    )
    sch.trace.apply_to_schedule(fresh, remove_postproc=False)
    tvm.ir.assert_structural_equal(fresh.mod, sch.mod)
