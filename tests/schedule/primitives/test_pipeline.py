"""The primitives ``sch.pipeline`` and ``sch.rasterize``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm import s_tir

import tvm_layout_ext as tlx
from tests.programs.products import multiplied
from tests.programs.running import gives
from tvm_layout_ext import te
from tvm_layout_ext.errors import ScheduleError


def product(m: int = 8, n: int = 8, k: int = 16) -> Any:
    return te.create_prim_func(multiplied((m, n, k), "float32", "float32"))


def staged(func: Any) -> tuple[Any, Any]:
    """Both operands staged at the loop over chunks of 4."""
    sch = s_tir.Schedule(func)
    block = sch.get_sblock("C")
    i, j, k = sch.get_loops(block)
    ko, ki = sch.split(k, [None, 4])
    sch.reorder(ko, i, j, ki)
    for index in (0, 1):
        sch.compute_at(sch.cache_read(block, index, "shared"), ko)
    return sch, ko


def test_pipeline_annotates_every_copy() -> None:
    func = product()
    sch, ko = staged(func)
    copies = sch.pipeline(ko, 3, async_copy=False)
    assert {sch.get(b).name_hint for b in copies} == {"A_shared", "B_shared"}
    for copy in copies:
        found = sch.get(copy).annotations
        assert (found["layout_ext.num_stages"], found["layout_ext.async_copy"]) == (3, 0)


def test_pipeline_needs_a_copy_from_global_to_shared_memory() -> None:
    sch = s_tir.Schedule(product())
    loop = sch.get_loops(sch.get_sblock("C"))[2]
    with pytest.raises(ScheduleError, match="Loop k holds no block that copies from global"):
        sch.pipeline(loop, 2)


def test_pipeline_refuses_other_ways_to_copy() -> None:
    sch, ko = staged(product())
    with pytest.raises(ScheduleError, match='True, False, "auto" or "tma", not \'yes\''):
        sch.pipeline(ko, 2, async_copy="yes")
    assert not sch.get(sch.get_sblock("A_shared")).annotations


def tiled(rows: int, columns: int) -> tuple[Any, list[Any]]:
    """A copy of one element a block."""
    X = te.placeholder((rows, columns), "float32", name="X")
    Y = te.compute((rows, columns), lambda i, j: X[i, j] + te.const(1, "float32"), name="Y")
    func = te.create_prim_func([X, Y]).with_attr("global_symbol", "main")
    sch = s_tir.Schedule(func)
    return sch, list(sch.get_loops(sch.get_sblock("Y")))


@pytest.mark.parametrize("group", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("shape", [(7, 5), (1, 6), (6, 1), (8, 4)])
def test_rasterize_keeps_the_results_for_every_remainder(
    shape: tuple[int, int], group: int
) -> None:
    sch, (i, j) = tiled(*shape)
    sch.rasterize(i, j, group)
    _, lane = sch.split(sch.add_unit_loop(sch.get_sblock("Y")), [None, 1])
    sch.bind(lane, "threadIdx.x")
    x = np.arange(shape[0] * shape[1], dtype="float32").reshape(shape)
    gives(sch, x, None, Y=x + 1)


def test_rasterize_of_one_row_leaves_the_program_as_it_is() -> None:
    one, (i, j) = tiled(4, 4)
    one.rasterize(i, j, 1)
    assert "_tile" not in tlx.lower(one).script()
    two, (i, j) = tiled(4, 4)
    two.rasterize(i, j, 2)
    text = tlx.lower(two).script()
    assert "layout_ext.rasterize" not in text
    assert "//" in text


@pytest.mark.parametrize(
    ("group", "said"), [*((n, "") for n in (0, -2, 1.5, True)), (65_536, " at most 65535")]
)
def test_rasterize_refuses_other_groups(group: Any, said: str) -> None:
    sch, (i, j) = tiled(4, 4)
    with pytest.raises(ScheduleError, match=f"group of rasterize must be{said}"):
        sch.rasterize(i, j, group)
    assert sch.get(i).thread_binding is None


def test_rasterize_binds_its_loops_itself() -> None:
    sch, (i, j) = tiled(4, 4)
    sch.bind(i, "blockIdx.y")
    with pytest.raises(ScheduleError, match=r"already bound to blockIdx\.y"):
        sch.rasterize(i, j)


def test_rasterize_of_what_cannot_be_bound_leaves_the_program_as_it_is() -> None:
    a, k = te.placeholder((32, 32), "float32", "A"), te.reduce_axis((0, 32), "k")
    total = te.compute((32,), lambda i: te.sum(a[i, k], axis=k), name="B")
    sch = s_tir.Schedule(te.create_prim_func([a, total]))
    i, inner = sch.get_loops(sch.get_sblock("B"))
    before = sch.mod
    with pytest.raises(ScheduleError, match="TensorIR refuses rasterize of loops i and k: The "):
        sch.rasterize(i, inner, 2)
    assert tvm_ffi.structural_equal(before, sch.mod)


def test_rasterize_refuses_a_loop_around_another_block_index() -> None:
    sch, (i, j) = tiled(4, 4)
    outer, inner = sch.split(j, [2, None])
    sch.bind(inner, "blockIdx.x")
    with pytest.raises(ScheduleError, match="i and j_0 are not"):
        sch.rasterize(i, outer)


def test_rasterize_needs_two_loops() -> None:
    sch, (i, _) = tiled(4, 4)
    with pytest.raises(ScheduleError, match="needs two loops; rows and columns are both i"):
        sch.rasterize(i, i)
