"""Conversions that are only staged in shared memory: one round trip, also for tensor cores."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tests.transform.conversion_programs import NAME, combined, program, stores
from tests.transform.test_combine_conversions import (
    ACCUMULATOR,
    COLUMNS,
    OPERAND,
    ROWS,
    check,
    run,
    shared_wavefronts,
    tiles,
)
from tvm_layout_ext import decisions
from tvm_layout_ext import layout as L
from tvm_layout_ext.simulate import Report, simulate

SM_80 = tlx.cuda_target("sm_80")
M = N = K = 64
DEPTH = 32
LOADED = L.BlockedLayout([1, 8], [8, 4], [4, 1], [1, 0])
CONVERTED = {
    "blocked": L.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]),
    "operand": L.DotOperandLayout(0, L.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]), 2),
}


def product(converted: Any = None) -> s_tir.Schedule:
    """``D = 2 * (relu(A) @ B)`` on tensor cores, relu(A) a register tile that may be converted."""
    a, b = te.placeholder((M, K), "float16", "A"), te.placeholder((K, N), "float16", "B")
    zero = tvm.tirx.const(0, "float16")
    r = te.compute((M, K), lambda i, j: te.max(a[i, j], zero), "R")
    k = te.reduce_axis((0, K), "k")

    def element(i: Any, j: Any) -> Any:
        return te.sum(r[i, k].astype("float32") * b[k, j].astype("float32"), axis=k)

    c = te.compute((M, N), element, "C")
    d = te.compute((M, N), lambda i, j: c[i, j] * 2.0, "D")
    sch = s_tir.Schedule(te.create_prim_func([a, b, d]).with_attr("global_symbol", "main"))
    tc = sch.use_tensor_core("C", multiples=(32, 32, DEPTH))
    mo, wm, mi = sch.split(tc.m, [None, 2, 1])
    no, wn, ni = sch.split(tc.n, [None, 2, 1])
    ko, ki = sch.split(tc.k, [None, DEPTH // 16])
    sch.reorder(mo, no, wm, wn, ko, ki, mi, ni)
    for loop, axis in zip((mo, no, wm, wn), ("y", "x", "y", "z"), strict=True):
        sch.bind(loop, f"{'block' if loop in (mo, no) else 'thread'}Idx.{axis}")
    for fragment in (tc.a_fragment, tc.b_fragment):
        sch.compute_at(fragment, ki, preserve_unit_loops=True)
    for copy in (tc.b, tc.a):
        sch.compute_at(copy, ko, preserve_unit_loops=True)
        sch.swizzle(copy, 0, "auto")
    _, y, z, x, vector = sch.split(sch.fuse(*sch.get_loops(tc.b)[-2:]), [None, 2, 2, 32, 4])
    for loop, axis in zip((y, z, x), "yzx", strict=True):
        sch.bind(loop, f"threadIdx.{axis}")
    sch.vectorize(vector)
    sch.set_scope("R", 0, "local")
    if converted is not None:
        copy = sch.cache_read(tc.a, 0, "local")
        sch.compute_at(copy, ko, preserve_unit_loops=True)
        sch.set_fragment_layout(copy, 0, converted)
    sch.compute_at("R", ko, preserve_unit_loops=True)
    sch.set_fragment_layout("R", 0, LOADED)
    sch.reverse_compute_at(tc.result, wn, preserve_unit_loops=True)
    sch.spread_sums(tc.result)
    return sch


def simulated(sch: s_tir.Schedule) -> Report:
    draw = np.random.default_rng(2)
    a, b = (draw.integers(-4, 5, size).astype("float16") for size in ((M, K), (K, N)))
    report = simulate(sch, a, b, None, target=SM_80)
    want = 2 * (np.maximum(a, 0).astype("float32") @ b.astype("float32"))
    np.testing.assert_array_equal(report.outputs["D"], want)
    assert report.hazards == []
    return report


def shared_of(sch: s_tir.Schedule) -> list[str]:
    """Buffers of shared memory that the lowered program allocates."""
    text = tlx.lower(sch, target=SM_80).script()
    return re.findall(r"(\w+) = T\.alloc_(?:shared|buffer)\(.*", text)


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_operand_of_a_product_makes_one_round_trip(name: str) -> None:
    sch = product(CONVERTED[name])
    with decisions.collect() as made:
        after = simulated(sch)
    told = [f"{d.subject}: {d.text}" for d in made if d.maker == "CombineLayoutConversions"]
    assert told == ["R_local_local: R_reindex_shared.dyn takes R_local as it lies, without a "
                    "conversion"]  # fmt: skip
    assert [d for d in made if d.maker == "LowerFragment"] == []

    with tvm.transform.PassContext(disabled_pass=[NAME]):
        before = simulated(sch)
        assert len([one for one in shared_of(sch) if "scratch" in one]) == 1
    assert [one for one in shared_of(sch) if "scratch" in one] == []
    assert after.barriers < before.barriers
    assert shared_wavefronts(after) < shared_wavefronts(before)

    # Nothing is left of the conversion: the same as if there had been none, without conflicts.
    plain = simulated(product())
    assert after.barriers == plain.barriers
    assert after.shared_bytes == plain.shared_bytes
    assert shared_wavefronts(after) == shared_wavefronts(plain)
    assert after.bank_conflicts == plain.bank_conflicts == 0


def test_the_operand_is_stored_swizzled_and_loaded_by_ldmatrix() -> None:
    with decisions.collect() as made:
        text = tlx.lower(product(CONVERTED["operand"]), target=SM_80).script()
    swizzled = [d.text for d in made if d.maker == "SwizzleSharedMemory" and "R_" in d.subject]
    assert len(swizzled) == 1
    assert swizzled[0].startswith("xor(")
    assert "ldmatrix(T.bool(False), 4" in text
    assert len(re.findall(r"R_reindex_shared_dyn\[.*\] = R_local", text)) >= 1


def staged(buffers: dict[str, Any], *more: str) -> Any:
    """A is loaded as F, converted to G, and goes through shared S to H, which is the output."""
    return tiles(
        buffers,
        ["F[vi, vj] = A[vi, vj]", "G[vi, vj] = F[vi, vj]", *more, "S[vi, vj] = G[vi, vj]",
         "H[vi, vj] = S[vi, vj]", "O[vi, vj] = H[vi, vj]"],
    )  # fmt: skip


def test_a_tile_is_stored_as_it_lies() -> None:
    parts = staged({"F": ROWS, "G": OPERAND, "S": "shared", "H": COLUMNS})
    check(
        parts,
        ["F[i, j] = A[i, j]", "S[i, j] = F[i, j]", "H[i, j] = S[i, j]", "O[i, j] = H[i, j]"],
        "G: S takes F as it lies",
    )
    before, after = run(parts)
    assert shared_wavefronts(after) < shared_wavefronts(before)


def test_plain_rows_that_would_be_crowded_are_stored_converted() -> None:
    """A thread's four elements of a column are stored one by one, 8 of a warp to each bank."""
    parts = staged({"F": COLUMNS, "G": ROWS, "S": "shared", "H": ACCUMULATOR})
    _, after, notes = combined(program(*parts))
    assert "S[i, j] = G[i, j]" in stores(after)
    assert not any("as it lies" in note for note in notes)
    run(parts)


def test_a_conversion_that_others_read_stays_for_them() -> None:
    parts = tiles(
        {"F": ROWS, "G": ACCUMULATOR, "S": "shared", "H": COLUMNS, "P": ACCUMULATOR, "Q": COLUMNS},
        ["F[vi, vj] = A[vi, vj]", "G[vi, vj] = F[vi, vj]", "P[vi, vj] = T.exp(G[vi, vj])",
         "S[vi, vj] = G[vi, vj]", "H[vi, vj] = S[vi, vj]", "Q[vi, vj] = P[vi, vj]",
         "O[vi, vj] = H[vi, vj] + Q[vi, vj]"],
    )  # fmt: skip
    _, after, notes = combined(program(*parts))
    assert "S[i, j] = F[i, j]" in stores(after)
    assert any(note.startswith("G: S takes F as it lies") for note in notes)
    run(parts)


def test_what_is_added_up_from_two_tiles_is_left_alone() -> None:
    """They must lie alike, so one of them cannot be left unconverted."""
    parts = tiles(
        {"F": ROWS, "G": ACCUMULATOR, "E": ACCUMULATOR, "S": "shared", "H": COLUMNS},
        ["F[vi, vj] = A[vi, vj]", "E[vi, vj] = A[vi, vj] * T.float32(2)", "G[vi, vj] = F[vi, vj]",
         "S[vi, vj] = G[vi, vj] + E[vi, vj]", "H[vi, vj] = S[vi, vj]", "O[vi, vj] = H[vi, vj]"],
    )  # fmt: skip
    _, after, _ = combined(program(*parts))
    assert any("G[i, j] + E[i, j]" in one for one in stores(after))
    run(parts)
