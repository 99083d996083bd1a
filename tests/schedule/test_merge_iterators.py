"""Products whose m, n or k is several iterators, written as NumPy's einsum writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir

from tests.programs.products import config
from tests.programs.running import gives
from tvm_layout_ext import ScheduleError, te
from tvm_layout_ext.schedules import gemm

EXTENTS = {"u": 1, "b": 2, "s": 33, "t": 40, "h": 3, "d": 32, "k": 48, "n": 40}


def einsum(spec: str, extents: dict[str, int] = EXTENTS) -> s_tir.Schedule:
    """A product of that form, and a bias added to it."""
    first, second, out = spec.replace("->", ",").split(",")
    shapes = [tuple(extents[c] for c in one) for one in (first, second, out)]
    A, W = (te.placeholder(s, "float16", name=n) for s, n in zip(shapes, "AW", strict=False))
    axes = {c: te.reduce_axis((0, extents[c]), c) for c in sorted({*first, *second} - {*out})}

    def term(*at: Any) -> Any:
        here = dict(zip(out, at, strict=True)) | axes
        a, w = A[tuple(here[c] for c in first)], W[tuple(here[c] for c in second)]
        return te.sum(a.astype("float32") * w.astype("float32"), axis=[*axes.values()])

    product = te.compute(shapes[2], term, name="product")
    bias = te.placeholder(shapes[2][-1:], "float32", name="bias")
    D = te.compute(shapes[2], lambda *at: product[at] + bias[at[-1]], name="D")
    return s_tir.Schedule(te.create_prim_func([A, W, bias, D]))


def check(spec: str, sch: s_tir.Schedule) -> None:
    rng = np.random.default_rng(0)
    buffers = sch.mod["main"].params[:3]
    a, w, bias = (rng.integers(-3, 4, tuple(map(int, b.shape))).astype(b.dtype) for b in buffers)
    want = np.einsum(spec, a.astype(np.float32), w.astype(np.float32)) + bias
    gives(sch.mod, a, w, bias, None, progress=False, D=want)


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize(
    "spec",
    [
        "usk,kn->usn",  # a Linear of one sequence
        "bsk,nk->bsn",  # rows of a batch and a sequence, weights shared
        "bshd,hdn->bsn",  # sums over heads and what each has
        "bsk,khd->bshd",  # columns of heads
        "kbs,nk->nsb",  # rows that lie apart in the result
        "bhst,bthd->bshd",  # the batch between rows and columns
        "bshd,bthd->bhst",
    ],
)
def test_products_of_any_einsum_are_one_kernel_with_their_bias(spec: str, slices: int) -> None:
    sch = einsum(spec)
    gemm.multiply(sch, "product", config((64, 64, 16), (1, 2)) | {"split_k": slices})
    check(spec, sch)
    replayed = s_tir.Schedule(einsum(spec).mod)
    sch.trace.apply_to_schedule(replayed, remove_postproc=False)
    assert tvm_ffi.structural_equal(replayed.mod, sch.mod)


def test_merged_rows_are_copied_in_vectors_of_the_last_iterator() -> None:
    sch = einsum("bshd,hdn->bsn", EXTENTS | {"s": 32, "n": 64})
    gemm.multiply(sch, "product", config((64, 64, 32)))
    assert str(sch.mod).count("T.vectorized(8)") == 2


def test_several_columns_beside_a_single_row_are_refused() -> None:
    sch = einsum("sk,khd->shd", EXTENTS | {"s": 1})
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"m, n, k of \(1, 96, 48\)"):
        sch.use_tensor_core("product")
    assert tvm_ffi.structural_equal(sch.mod, before)
