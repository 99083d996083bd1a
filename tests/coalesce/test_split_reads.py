"""Parting the reads of a block: the program before it is staged, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import s_tir, te
from tvm.script import tirx as T

from tvm_layout_ext.analysis.nest import Nest, read_nest
from tvm_layout_ext.coalesce.split_reads import SplitReads, split_aliasing_reads


@T.prim_func(s_tir=True)
def before(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (32, 32), "float32")
    B = T.match_buffer(b, (32, 32), "float32")
    for i, j in T.grid(32, 32):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + A[vj, vi] * A[vj, vi]


@T.prim_func(s_tir=True)
def parted(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (32, 32), "float32")
    B = T.match_buffer(b, (32, 32), "float32")
    A_1 = T.sblock_alloc_buffer((32, 32), "float32", align=64)
    for i, j in T.grid(32, 32):
        with T.sblock("A_1"):
            vi, vj = T.axis.remap("SS", [i, j])
            A_1[vi, vj] = A[vi, vj]
    for i, j in T.grid(32, 32):
        with T.sblock("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + A_1[vj, vi] * A_1[vj, vi]


BEFORE, PARTED = (func.with_attr("global_symbol", "main") for func in (before, parted))


def part(func: Any, name: str, *apart: int) -> tuple[Any, Nest, SplitReads | None]:
    """Part the reads of a block, of which some, by their number, are to be staged."""
    sch = s_tir.Schedule(func)
    nest = read_nest(sch, sch.get_sblock(name))
    return sch, nest, split_aliasing_reads(sch, nest, [nest.accesses[i] for i in apart])


def test_a_read_of_another_place_gets_a_copy_of_the_whole_buffer() -> None:
    sch, _, found = part(BEFORE, "B", 1)
    assert found is not None
    tvm.ir.assert_structural_equal(found.sch.mod["main"], PARTED)
    assert found.originals == {"A_1": "A"}
    # The schedule it came from has not changed.
    tvm.ir.assert_structural_equal(sch.mod["main"], BEFORE)


def test_inlining_the_copies_gives_the_block_back() -> None:
    _, _, found = part(BEFORE, "B", 1)
    assert found is not None
    found.inline(found.sch)
    tvm.ir.assert_structural_equal(found.sch.mod["main"], BEFORE)


@pytest.mark.parametrize(("apart", "kept"), [(0, [1, 0]), (1, [0, 1])])
def test_the_read_that_is_not_to_be_staged_keeps_the_buffer(apart: int, kept: list[int]) -> None:
    a = te.placeholder((32, 32), "float32", "A")
    b = te.compute((32, 32), lambda i, j: a[i, j] + a[j, i], "B")
    _, _, found = part(te.create_prim_func([a, b]), "B", apart)
    assert found is not None
    site = found.sch.get(found.block)
    (own,) = (region for region in site.reads if str(region.source.name) == "A")
    for point, at in zip(own.region, kept, strict=True):
        assert point.min.same_as(site.iter_vars[at].var)


def test_where_every_buffer_is_read_at_one_place_there_is_nothing_to_part() -> None:
    a = te.placeholder((32, 32), "float32", "A")
    b = te.compute((32, 32), lambda i, j: a[j, i] * a[j, i], "B")
    assert part(te.create_prim_func([a, b]), "B", 0)[2] is None


@T.prim_func(s_tir=True)
def nested(a: T.handle, b: T.handle) -> None:
    A = T.match_buffer(a, (32, 32), "float32")
    B = T.match_buffer(b, (32, 32), "float32")
    for k in range(1):
        with T.sblock("outer"):
            vk = T.axis.spatial(1, k)
            for i, j in T.grid(32, 32):
                with T.sblock("B"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    B[vi, vj] = A[vi, vj + vk] + A[vj, vi]


def test_a_block_inside_another_is_left_alone() -> None:
    assert part(nested, "B", 1)[2] is None


def test_functions_beside_it_stay_as_they_are() -> None:
    mod = tvm.IRModule({"main": BEFORE, "other": nested})
    sch = s_tir.Schedule(mod)
    nest = read_nest(sch, sch.get_sblock("B", "main"))
    found = split_aliasing_reads(sch, nest, [nest.accesses[1]])
    assert found is not None
    tvm.ir.assert_structural_equal(found.sch.mod["other"], mod["other"])
