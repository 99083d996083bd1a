"""auto_coalesce of reductions inside a kernel: a thread of the kernel sums each result."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.programs.running import gives
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.simulate import simulate
from tvm_layout_ext.simulate.report import Report


def whole_numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).integers(-4, 5, shape).astype("float32")


def sums_of(shape: tuple[int, ...], axis: int) -> s_tir.Schedule:
    """Twice the sums along an axis, which a kernel keeps in shared memory, four rows a block."""
    rest = shape[:axis] + shape[axis + 1 :]
    a, k = te.placeholder(shape, "float32", "A"), te.reduce_axis((0, shape[axis]), "k")
    sums = te.compute(rest, lambda *i: te.sum(a[(*i[:axis], k, *i[axis:])], axis=k), "S")
    b = te.compute(rest, lambda *i: sums[i] * 2.0, "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    grid, _ = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 4])
    sch.bind(grid, "blockIdx.x")
    sch.compute_at(sch.get_sblock("S"), grid)
    sch.set_scope(sch.get_sblock("S"), 0, "shared")
    return sch


@pytest.mark.parametrize(
    ("shape", "axis"), [((64, 48), 1), ((64, 48), 0), ((7, 33), 1), ((4, 8, 16), 1), ((9, 5, 7), 2)]
)
def test_sums_in_a_kernel_were_dealt_out_along_the_sum_and_did_not_lower(
    shape: tuple[int, ...], axis: int
) -> None:
    sch = sums_of(shape, axis)
    outcome = sch.auto_coalesce("S")
    assert outcome.path == "copy"
    sch.auto_coalesce("B")
    a = whole_numbers(shape)
    gives(tlx.lower(sch), a, None, B=a.sum(axis) * 2)


def product(shape: tuple[int, int, int], order: str) -> tuple[Report, np.ndarray]:
    """A product whose tiles of factors and sums lie in shared memory, each block mapped alone."""
    m, n, k = shape
    a, b = te.placeholder((m, k), "float32", "A"), te.placeholder((k, n), "float32", "B")
    r = te.reduce_axis((0, k), "r")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "C")
    sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    parts = [sch.split(loop, [None, 16]) for loop in sch.get_loops(block)]
    (io, ii), (jo, ji), (ro, ri) = parts
    sch.reorder(io, jo, ro, ii, ji, ri)
    blocks = {"C": block, "W": sch.cache_write(block, 0, "shared")}
    sch.bind(io, "blockIdx.y")
    sch.bind(jo, "blockIdx.x")
    sch.reverse_compute_at(blocks["W"], jo)
    for index, name in enumerate("AB"):
        blocks[name] = sch.cache_read(block, index, "shared")
        sch.compute_at(blocks[name], ro)
    for name in order:
        assert sch.auto_coalesce(blocks[name]).path == "copy"
    values = whole_numbers((m, k)), whole_numbers((k, n))
    return simulate(tlx.lower(sch), *values, None), values[0] @ values[1]


@pytest.mark.parametrize("order", ["CWAB", "ABCW", "WBAC"])
@pytest.mark.parametrize("shape", [(32, 48, 64), (17, 33, 20)])
def test_a_product_of_tiles_is_mapped_block_by_block(
    shape: tuple[int, int, int], order: str
) -> None:
    report, want = product(shape, order)
    np.testing.assert_array_equal(report.outputs["C"], want)
    assert not report.hazards


def test_a_single_sum_in_a_kernel_is_refused() -> None:
    a, k = te.placeholder((8, 64), "float32", "A"), te.reduce_axis((0, 64), "k")
    b = te.compute((8,), lambda i: te.sum(a[i, k], axis=k), "B")
    sch = s_tir.Schedule(te.create_prim_func([a, b]))
    out = sch.cache_write(sch.get_sblock("B"), 0, "shared")
    grid = sch.get_loops(out)[0]
    sch.bind(grid, "blockIdx.x")
    sch.compute_at(sch.get_sblock("B"), grid)
    before = sch.mod.script()
    with pytest.raises(ScheduleError, match="there is one result, which one thread alone would"):
        sch.auto_coalesce("B")
    assert sch.mod.script() == before
