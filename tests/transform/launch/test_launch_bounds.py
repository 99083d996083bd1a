"""``__launch_bounds__`` of kernels whose schedule says how many blocks a multiprocessor holds."""

from __future__ import annotations

import pytest
from tvm import s_tir

from tests.programs.emitted import cuda_text
from tests.programs.mapped import computed, share
from tvm_layout_ext import decisions
from tvm_layout_ext.ir.annotations import MIN_BLOCKS


def bound(blocks: int | None) -> s_tir.Schedule:
    sch = computed((1024,), lambda a, i: a[i] * 2.0)
    grid = share(sch, 256)
    if blocks is not None:
        sch.annotate(grid, MIN_BLOCKS, blocks)
    return sch


@pytest.mark.parametrize(("blocks", "text"), [(None, "(256"), (4, "(256, 4"), (1, "(256, 1")])
def test_blocks_are_the_second_number_of_launch_bounds(blocks: int | None, text: str) -> None:
    with decisions.collect() as made:
        source = cuda_text(bound(blocks))
    assert source.partition("__launch_bounds__")[2].partition(")")[0] == text
    said = [decision.text for decision in made if decision.maker == "SetLaunchBounds"]
    assert said == ([] if blocks is None else [f"{blocks} blocks a multiprocessor"])
