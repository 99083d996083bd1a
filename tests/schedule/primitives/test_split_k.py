"""``sch.split_k``: slices of K side by side, and the kernel that adds them up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.emitted import cuda_text
from tests.programs.products import Product, multiplied, simulated
from tests.sampling import pairwise
from tests.schedule.primitives.test_use_tensor_core import TYPES
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.schedules import gemm
from tvm_layout_ext.schedules._split_k import add_up

SMALL = gemm.OPERATOR.default_config() | {"tile_m": 64, "tile_n": 64, "stages": 2}


def scheduled(product: Product, slices: int, **changes: Any) -> s_tir.Schedule:
    sch = s_tir.Schedule(product.func())
    config = SMALL | {"split_k": slices} | changes
    gemm.multiply(sch, "C", config, product.instruction)
    return sch


#: Batch, whether a bias and relu follow, and whether B is stored transposed.
FORMS = [(0, False, True), (0, True, False), (2, True, True), (2, False, False)]
#: A bias is float32, so only such sums have it added.
CASES = pairwise(
    (name, form, slices, shape)
    for name, product in TYPES.items()
    for form in FORMS
    if not form[1] or product.sums == "float32"
    for slices in (2, 3, 4)
    for shape in [(64, 64, 256), (16, 128, 264), (50, 72, 200), (17, 9, 131), (130, 71, 99)]
)


@pytest.mark.matrix
@pytest.mark.parametrize(("name", "form", "slices", "shape"), CASES)
def test_slices_add_up_to_the_product(
    name: str, form: tuple[int, bool, bool], slices: int, shape: tuple[int, int, int]
) -> None:
    batch, epilogue, b_transposed = form
    product = replace(
        TYPES[name], shape=shape, batch=batch, epilogue=epilogue, b_transposed=b_transposed
    )
    simulated(product, scheduled(product, slices))


@pytest.mark.parametrize("stages", [1, 4])
@pytest.mark.parametrize("slices", [2, 8])
def test_whole_slices_have_no_conflict_and_no_hazard(slices: int, stages: int) -> None:
    product = Product(shape=(128, 64, 256), out="float16", epilogue=True)
    report = simulated(product, scheduled(product, slices, stages=stages))
    assert report.bank_conflicts == 0


@pytest.mark.parametrize("shape", [(24, 8, 64), (72, 96, 130), (7, 3, 128)])
def test_batches_whose_vectors_do_not_fill_blocks_are_added_up(shape: tuple[int, int, int]) -> None:
    """96 vectors of three dims, in blocks of 64 threads, were a sum that TVM does not vectorize."""
    product = Product(shape=shape, batch=2, out="float16")
    simulated(product, scheduled(product, 2))


def test_slices_are_added_from_the_first_to_the_last() -> None:
    """2**24 + 1 + 1 - 2**24 is 0 in float32 from left to right, and 2 in other orders."""
    product = Product(shape=(64, 64, 128), b_transposed=True)
    a, b = (np.zeros((64, 128), np.float16) for _ in range(2))
    a[:, ::32] = [4096, 1, 1, -4096]
    b[:, ::32] = [4096, 1, 1, 4096]
    report = tlx.simulate(scheduled(product, 4).mod, a, b, None)
    (got,) = report.outputs.values()
    assert (got == 0).all()
    whole = tlx.simulate(scheduled(product, 2).mod, a, b, None)
    (got,) = whole.outputs.values()
    # Sums of two are 2**24 + 1, which rounds to 2**24, and 1 - 2**24, which is exact.
    assert (got == 1).all()


def test_the_second_kernel_waits_for_the_first_one_on_the_gpu() -> None:
    sch = scheduled(Product(shape=(64, 64, 256), epilogue=True, out="float16"), 2)
    first, second = cuda_text(sch).split('extern "C" __global__')[2::2]
    assert "griddepcontrol" not in first
    assert "griddepcontrol_wait" in second
    assert "half4" in second
    assert second.count("float4 v_") >= 2


def test_a_product_on_ordinary_units_can_be_split_as_well() -> None:
    product = Product(operand="float32", shape=(24, 40, 50), out="float32", epilogue=True)
    sch = s_tir.Schedule(product.func())
    cut = sch.split_k("C", 3)
    for copy in cut.copies:
        sch.compute_inline(copy)
    loops = sch.get_loops(cut.partial)
    sch.bind(sch.fuse(*loops[:2]), "blockIdx.x")
    sch.bind(loops[2], "threadIdx.x")
    add_up(sch, cut.sum)
    arguments, want = product.inputs()
    (got,) = tlx.simulate(sch.mod, *arguments).outputs.values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_a_product_without_epilogue_writes_its_sums() -> None:
    sch = s_tir.Schedule(te.create_prim_func(multiplied((64, 40, 96))))
    gemm.multiply(sch, "C", SMALL | {"split_k": 3})
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((64, 96), (96, 40)))
    (got,) = tlx.simulate(sch.mod, a, b, None).outputs.values()
    np.testing.assert_allclose(got, a.astype(float) @ b.astype(float), atol=1e-3)


@pytest.mark.parametrize(
    ("slices", "multiple", "message"),
    [
        (0, 1, "slices of split_k must be at least 1, not 0"),
        (-2, 1, "slices of split_k must be at least 1, not -2"),
        ("two", 1, "slices of split_k must be a whole number, not 'two'"),
        (2.0, 1, "slices of split_k must be a whole number, not 2.0"),
        (2, 0, "multiple of split_k must be at least 1, not 0"),
        (65, 1, "the 64 terms of block C into 65 slices of multiples of 1; 1 to 64 are legal"),
        (3, 32, "the 64 terms of block C into 3 slices of multiples of 32; 1 to 2 are legal"),
    ],
)
def test_other_numbers_are_refused(slices: Any, multiple: int, message: str) -> None:
    sch = s_tir.Schedule(Product().func())
    before = sch.mod.script()
    with pytest.raises(ScheduleError, match=message):
        sch.split_k("C", slices, multiple=multiple)
    assert sch.mod.script() == before


def test_what_is_no_product_is_refused() -> None:
    sch = s_tir.Schedule(Product().func())
    with pytest.raises(ScheduleError, match="Block D has no initial value in it"):
        sch.split_k("D", 2)


def test_touched_loops_are_refused() -> None:
    sch = s_tir.Schedule(Product().func())
    sch.split(sch.get_loops("C")[0], [None, 16])
    with pytest.raises(ScheduleError, match="split_k comes before loops are split, fused"):
        sch.split_k("C", 2)
    sch = s_tir.Schedule(Product().func())
    sch.bind(sch.get_loops("C")[0], "blockIdx.x")
    with pytest.raises(ScheduleError, match="are no longer those of its 3 iterators"):
        sch.split_k("C", 2)
