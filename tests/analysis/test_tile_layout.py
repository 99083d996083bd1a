"""Conversion to and from TVM's TileLayout."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tvm.tirx.layout import ComposeLayout, Iter, TileLayout, tcgen05_atom_layout, wg_local_layout

from tests.layout import strategies
from tvm_layout_ext import layout as L
from tvm_layout_ext.analysis.tile_layout import from_tile_layout, to_tile_layout
from tvm_layout_ext.errors import LayoutError


@given(st.data())
def test_distributed_layouts_go_there_and_back(data: st.DataObject) -> None:
    layout = data.draw(st.one_of(strategies.blocked(), strategies.mma(), strategies.slices()))
    shape = data.draw(strategies.shapes(layout.rank))
    linear = layout.to_linear(shape)

    assert from_tile_layout(to_tile_layout(linear), shape) == linear


@given(st.data())
def test_rows_in_shared_memory_go_there_and_back(data: st.DataObject) -> None:
    padded = data.draw(strategies.padded())
    shape = data.draw(strategies.shapes(padded.rank))
    linear = padded.to_linear(shape)

    assert from_tile_layout(to_tile_layout(linear), shape, memory="offset") == linear


def test_tile_layout_names_the_holder_of_each_element() -> None:
    layout = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])
    holder = layout.to_linear([16, 16]).invert()
    tile = to_tile_layout(layout.to_linear([16, 16]))

    for i in range(16):
        for j in range(16):
            there = {name: int(n) for name, n in tile.apply(i, j, shape=[16, 16]).items()}
            here = holder.apply(dim0=i, dim1=j)
            assert (there.get("m", 0), there.get("laneid", 0), there.get("warpid", 0)) == (
                here["register"],
                here["lane"],
                here["warp"],
            )


def test_wgmma_accumulator_is_tvms_16x256b_atom() -> None:
    atom = tcgen05_atom_layout("16x256b", (64, 64), "float32")
    ours = L.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])

    assert from_tile_layout(atom, [64, 64]) == ours.to_linear([64, 64])


def test_a_row_a_thread() -> None:
    linear = from_tile_layout(wg_local_layout(8), [128, 8])

    assert linear.basis("register") == ((0, 1), (0, 2), (0, 4))
    assert linear.basis("warp") == ((32, 0), (64, 0))


def iters(*digits: tuple[int, int, str]) -> TileLayout:
    return TileLayout.from_iters([Iter(*digit) for digit in digits])


@pytest.mark.parametrize(
    ("tile", "sentence"),
    [
        (iters((3, 1, "m")), "extent 3"),
        (iters((4, 3, "m")), "stride 3"),
        (iters((8, 1, "m")), "does not lay out 4"),
        (iters((2, 2, "m"), (2, 4, "m")), "leaves gaps"),
        (iters((2, 1, "m"), (2, 1, "m")), "two digits at stride 1"),
        (iters((4, 1, "P")), "not modelled: P"),
        (TileLayout.from_iters([Iter(4, 1, "m")], offset={"m": 1}), "offset"),
        (ComposeLayout(0, 1, 1, iters((4, 1, "m"))), "no TileLayout"),
    ],
)
def test_what_is_not_linear_is_refused(tile: Any, sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        from_tile_layout(tile, [4])


def test_a_swizzle_has_no_tile_layout() -> None:
    with pytest.raises(LayoutError, match="is a sum or twin"):
        to_tile_layout(L.SwizzledSharedLayout(1, 1, 4, [1, 0]).to_linear([4, 4]))
