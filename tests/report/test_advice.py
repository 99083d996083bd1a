"""Advice of ``explain``: each line, put into the schedule, does what its sentence says."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import pytest
import tvm_ffi
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.products import multiplied
from tests.report.test_explain import make_transpose
from tvm_layout_ext import te
from tvm_layout_ext.report.advice import MOST, Advice
from tvm_layout_ext.report.explain import Explanation, explain

#: A transpose whose tile meets banks 32 times.
turned = partial(make_transpose, side=128)


def columns_summed(line: str = "") -> s_tir.Schedule:
    """Sums of rows through a shared tile, a step of 32 elements at a time."""
    A = te.placeholder((256, 1024), "float32", name="A")
    k = te.reduce_axis((0, 1024), name="k")
    B = te.compute((256,), lambda i: te.sum(A[i, k], axis=k), name="B")
    sch = s_tir.Schedule(te.create_prim_func([A, B]))
    b = sch.get_sblock("B")
    i, k = sch.get_loops(b)
    io, ii = sch.split(i, [None, 32])
    ko, _ = sch.split(k, [None, 32])
    sch.bind(io, "blockIdx.x")
    sch.bind(ii, "threadIdx.x")
    copy = sch.cache_read(b, 0, "shared")
    sch.compute_at(copy, ko)
    sch.bind(sch.get_loops(copy)[-1], "threadIdx.x")
    exec(line, {"sch": sch})
    return sch


def doubled(rows: int = 4096) -> s_tir.Schedule:
    A = te.placeholder((rows, 4096), "float16", name="A")
    B = te.compute((rows, 4096), lambda i, j: A[i, j] * 2, name="B")
    return s_tir.Schedule(te.create_prim_func([A, B]))


def doubled_by_lanes(line: str = "") -> s_tir.Schedule:
    """A half a lane; ``line`` is put where it says: before the lanes are bound."""
    sch = doubled()
    i, j = sch.get_loops("B")
    _, lane = sch.split(j, [None, 512])
    names = {"sch": sch, "loop": lane}
    exec(line, names)
    sch.bind(i, "blockIdx.x")
    sch.bind(names["loop"], "threadIdx.x")
    return sch


def doubled_by_lanes_of_te(line: str = "") -> tuple[te.Schedule, list[te.Tensor]]:
    """The same with the primitives of TE."""
    A = te.placeholder((4096, 4096), "float16", name="A")
    B = te.compute((4096, 4096), lambda i, j: A[i, j] * 2, name="B")
    s = tlx.create_schedule(B)
    _, lane = s[B].split(B.op.axis[1], factor=512)
    names = {"s": s, "loop": lane}
    exec(line, names)
    s[B].bind(B.op.axis[0], te.thread_axis("blockIdx.x"))
    s[B].bind(names["loop"], te.thread_axis("threadIdx.x"))
    return s, [A, B]


def product() -> s_tir.Schedule:
    A = te.placeholder((96, 1024), "float32", name="A")
    B = te.placeholder((1024, 96), "float32", name="B")
    k = te.reduce_axis((0, 1024), name="k")
    C = te.compute((96, 96), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")
    return s_tir.Schedule(te.create_prim_func([A, B, C]))


def tile_product(sch: s_tir.Schedule, block: Any) -> None:
    *batch, i, j, k = sch.get_loops(block)
    io, ii = sch.split(i, [None, 32])
    jo, ji = sch.split(j, [None, 32])
    sch.reorder(*batch, io, jo, ii, ji, k)
    tags = ["blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"]
    for loop, tag in zip((io, jo, ii, ji), tags, strict=True):
        sch.bind(loop, tag)
    for loop in batch:
        sch.bind(loop, "blockIdx.z")


@cache
def plain(make: Callable[[], Any]) -> Explanation:
    """What is told of a program that no advice was put into."""
    made = make()
    return explain(*made) if isinstance(made, tuple) else explain(made)


def given(found: Explanation, about: str) -> Advice:
    (one,) = [advice for advice in found.advice if about in advice.line]
    return one


def requests(found: Explanation) -> int:
    return found.question.now.requests()


def test_a_swizzle_saves_the_wavefronts_that_advice_says() -> None:
    advice = given(plain(turned), "swizzle")
    assert advice.text == (
        "A_shared meets banks 32 times; a swizzle saves 15,872 of 15,872 extra wavefronts"
    )
    after = explain(*turned(line=advice.line), grid_sample=None)
    assert after.bank_conflicts == 0


def test_the_same_advice_in_the_words_of_tensorir() -> None:
    s, args = turned()
    advice = given(explain(s.to_schedule(args)), "swizzle")
    assert advice.line == 'sch.swizzle(sch.get_sblock("A_shared"), mode="auto")'


@pytest.mark.parametrize("is_te", [True, False])
def test_a_swizzle_takes_the_place_of_padding_that_does_not_help(is_te: bool) -> None:
    s, args = turned(line='s["A_shared"].storage_align(s["A_shared"].op.axis[0], 32, 0)')
    sch = s.to_schedule(args)
    advice = given(explain(s, args) if is_te else explain(sch), "swizzle")
    exec(advice.line, {"s": s, "sch": sch})
    after = explain(s, args) if is_te else explain(sch)
    assert after.bank_conflicts == 0


def test_vectors_save_the_requests_that_advice_says() -> None:
    before = plain(doubled_by_lanes)
    advice = given(before, "vectorize")
    assert advice.text == (
        "A lane moves bytes of A 2 of 16, of B 2 of 16: vectors save 917,504 of 1,048,576 requests"
    )
    after = explain(doubled_by_lanes(advice.line))
    assert {row.vector_bytes for row in after.rows} == {16}
    assert requests(before) - requests(after) == 917_504


def test_the_vectors_that_advice_says_in_the_words_of_te() -> None:
    advice = given(plain(doubled_by_lanes_of_te), "vectorize")
    assert advice.line == (
        'loop, v = s["B"].split(s["B"].leaf_iter_vars[-1], factor=8); s["B"].vectorize(v)'
        "  # before j_1 is bound; bind loop for it"
    )
    after = explain(*doubled_by_lanes_of_te(advice.line))
    assert {row.vector_bytes for row in after.rows} == {16}


def test_auto_coalesce_takes_the_requests_that_advice_says() -> None:
    before = plain(doubled_by_lanes)
    advice = given(before, "auto_coalesce")
    assert "requests to global memory 1,048,576 to 131,072" in advice.text
    sch = doubled()
    exec(advice.line, {"sch": sch})
    after = explain(sch)
    assert requests(after) == 131_072
    assert before.limit is not None
    assert after.limit is not None
    saved = before.limit.seconds - after.limit.seconds
    assert saved == pytest.approx(advice.seconds, rel=1e-3)


def test_copies_ahead_are_advised_and_made() -> None:
    advice = given(plain(columns_summed), "double_buffer")
    assert advice.text == "Each step waits for A_shared; 3 versions keep 2 copies in flight"
    assert advice.line == 'sch.double_buffer(sch.get_sblock("A_shared"), num_stages=3)'
    after = explain(columns_summed(advice.line))
    assert after.hazards == []
    assert '"async"' in after.listing
    assert after.shared_bytes == 3 * plain(columns_summed).shared_bytes


def test_slices_of_a_sum_give_work_to_more_multiprocessors() -> None:
    sch = product()
    tile_product(sch, "C")
    before = explain(sch)
    assert before.limit is not None
    assert str(before.limit).startswith("Limit: parallelism (9 of 132 multiprocessors work)")
    advice = before.advice[0]
    assert advice.text == (
        "9 of 132 multiprocessors work: 8 slices of the 1024 terms of C make 72 blocks"
    )
    cut = product()
    names: dict[str, Any] = {"sch": cut}
    exec(advice.line, names)
    tile_product(cut, names["cut"].partial)
    tile_product(cut, names["cut"].sum)
    after = explain(cut)
    assert max(limit.work.blocks for limit in after.question.now.limits) == 72


def test_slices_of_a_product_by_tensor_cores() -> None:
    a, b, c = multiplied((128, 128, 4096))

    def tiled(line: str = "") -> s_tir.Schedule:
        sch = s_tir.Schedule(te.create_prim_func([a, b, c]))
        names: dict[str, Any] = {"sch": sch}
        exec(line, names)
        cut = names.get("cut")
        sch.gemm(cut.partial if cut else "C", tile=(64, 128, 32))
        if cut:
            sch.auto_coalesce(cut.sum)
        return sch

    before = explain(tiled())
    (advice,) = before.advice
    assert "(estimated: " in str(advice)
    assert advice.text == (
        "2 of 132 multiprocessors work: 64 slices of the 4096 terms of C make 128 blocks"
    )
    after = explain(tiled(advice.line))
    assert after.hazards == []
    assert max(limit.work.blocks for limit in after.question.now.limits) == 128
    assert after.question.now.seconds < before.question.now.seconds


def rows_summed(line: str = "") -> tuple[te.Schedule, list[te.Tensor]]:
    """A lane a row; what ``line`` cuts off lies along the blocks."""
    A = te.placeholder((64, 4096), "float32", name="A")
    k = te.reduce_axis((0, 4096), name="k")
    C = te.compute((64,), lambda i: te.sum(A[i, k], axis=k), name="C")
    s = tlx.create_schedule(C)
    names: dict[str, Any] = {"s": s}
    exec(line, names)
    if "cut" in names:
        cut = names["cut"]
        s[cut].bind(cut.op.axis[0], te.thread_axis("blockIdx.x"))
        s[cut].bind(cut.op.axis[1], te.thread_axis("threadIdx.x"))
    s[C].bind(s[C].op.axis[0], te.thread_axis("threadIdx.x"))
    return s, [A, C]


def test_slices_of_any_sum_in_the_words_of_te() -> None:
    found = plain(rows_summed)
    advice = given(found, "rfactor")
    assert advice.text == (
        "1 of 132 multiprocessors work: 64 slices of the 4096 terms of C make 64 blocks"
    )
    after = explain(*rows_summed(advice.line))
    assert max(limit.work.blocks for limit in after.question.now.limits) == 64
    assert after.question.now.seconds < found.question.now.seconds


def test_slices_of_any_sum_in_the_words_of_tensorir() -> None:
    def by_lanes(line: str = "") -> s_tir.Schedule:
        sch = s_tir.Schedule(te.create_prim_func(rows_summed()[1]))
        names: dict[str, Any] = {"sch": sch}
        exec(line, names)
        if "cut" in names:
            i, part, _ = sch.get_loops(names["cut"])
            sch.reorder(part, i)
            sch.bind(part, "blockIdx.x")
            sch.bind(i, "threadIdx.x")
        sch.bind(sch.get_loops("C")[0], "threadIdx.x")
        return sch

    after = explain(by_lanes(given(explain(by_lanes()), "rfactor").line))
    assert max(limit.work.blocks for limit in after.question.now.limits) == 64


def test_no_slices_where_a_second_kernel_costs_more_than_they_save() -> None:
    A = te.placeholder((64, 64), "float32", name="A")
    k = te.reduce_axis((0, 64), name="k")
    C = te.compute((64,), lambda i: te.sum(A[i, k], axis=k), name="C")
    s = tlx.create_schedule(C)
    s[C].bind(C.op.axis[0], te.thread_axis("threadIdx.x"))
    assert not [one for one in explain(s, [A, C]).advice if "rfactor" in one.line]


def test_a_good_kernel_gets_no_advice() -> None:
    sch = doubled()
    sch.auto_coalesce("B")
    found = explain(sch)
    assert found.advice == []
    assert found.limit is not None
    assert found.limit.name in ("bytes", "latency")


def test_no_more_than_three_things_are_advised_and_the_best_comes_first() -> None:
    found = plain(turned).advice
    saved = [advice.seconds for advice in found]
    assert len(found) <= MOST
    assert saved == sorted(saved, reverse=True)


def test_what_lower_gave_is_modelled_alike_and_gets_no_advice() -> None:
    found = explain(tlx.lower(*turned()))
    assert str(found.limit) == str(plain(turned).limit)
    assert found.advice == []


def test_what_cannot_be_modelled_has_a_table_all_the_same() -> None:
    sch = doubled()
    sch.auto_coalesce("B")
    found = explain(tlx.lower(sch))
    assert (found.limit, found.advice) == (None, [])
    assert "Limit" not in str(found)


def test_the_lines_of_the_table_are_those_of_the_listing() -> None:
    found = plain(turned)
    lines = found.listing.split("\n")
    for row in found.rows:
        assert lines[row.line].split()[0] == str(row.line)
        assert row.buffer in lines[row.line]
    (read,) = [row for row in found.rows if (row.scope, row.kind) == ("shared", "load")]
    assert "4,096 (128)" in lines[read.line]
    assert found.listing in found.text()


def test_a_stage_is_found_by_the_name_that_advice_gives() -> None:
    s, (A, _) = turned()
    assert s["A"] is s[A]
    assert isinstance(s["A_shared"], te.Stage)
    with pytest.raises(tlx.ScheduleError, match="no stage 'X'; its stages are"):
        s["X"]


def test_an_explanation_shows_itself_in_ten_lines() -> None:
    assert len(repr(plain(turned)).split("\n")) <= 10


def test_the_pieces_of_a_shared_program_are_left_alone() -> None:
    source = doubled_by_lanes()
    before = source.mod
    assert explain(source).advice
    assert tvm_ffi.structural_equal(source.mod, before)
