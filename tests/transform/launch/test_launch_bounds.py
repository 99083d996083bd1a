"""``__launch_bounds__`` of kernels whose schedule says how many blocks a multiprocessor holds."""

from __future__ import annotations

import pytest
from tvm import s_tir, te

import tvm_layout_ext as tlx
from tvm_layout_ext import decisions
from tvm_layout_ext.ir.annotations import MIN_BLOCKS


def plain() -> s_tir.Schedule:
    a = te.placeholder((1024,), "float32", "A")
    b = te.compute((1024,), lambda i: a[i] * 2.0, "B")
    return s_tir.Schedule(te.create_prim_func([a, b]))


def bound(blocks: int | None) -> s_tir.Schedule:
    sch = plain()
    grid, thread = sch.split(sch.get_loops(sch.get_sblock("B"))[0], [None, 256])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if blocks is not None:
        sch.annotate(grid, MIN_BLOCKS, blocks)
    return sch


@pytest.mark.parametrize(("blocks", "text"), [(None, "(256"), (4, "(256, 4"), (1, "(256, 1")])
def test_blocks_are_the_second_number_of_launch_bounds(blocks: int | None, text: str) -> None:
    with decisions.collect() as made:
        built = tlx.build(bound(blocks), target="nvidia/nvidia-h100")
    source = str(built.mod.imports[0].inspect_source())
    assert source.partition("__launch_bounds__")[2].partition(")")[0] == text
    said = [decision.text for decision in made if decision.maker == "SetLaunchBounds"]
    assert said == ([] if blocks is None else [f"{blocks} blocks a multiprocessor"])
