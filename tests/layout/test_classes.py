"""The layout classes: the examples everyone knows, laws, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import strategies
from tvm_layout_ext import layout as L
from tvm_layout_ext.errors import LayoutError

BLOCKED = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])


def threads(layout: L.Layout, shape: list[int], block: int = 0) -> np.ndarray:
    """The thread (32 * warp + lane) that holds each element of one block's part."""
    linear = layout.to_linear(shape)
    ins = linear.in_sizes
    grids = np.meshgrid(*(np.arange(n) for n in ins.values()), indexing="ij", sparse=True)
    index = dict(zip(ins, grids, strict=True))
    index["block"] = np.array([[[[block]]]])
    at = linear.apply_arrays(**index)
    held = np.full(shape, -1)
    thread = np.broadcast_to(32 * index["warp"] + index["lane"], at["dim0"].shape)
    held[tuple(at.values())] = thread
    return held


def test_blocked_16x16() -> None:
    held = threads(BLOCKED, [16, 16])
    assert held[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 32, 32, 33, 33, 34, 34, 35, 35]
    assert held[1].tolist() == held[0].tolist()
    assert held[2, :4].tolist() == [4, 4, 5, 5]
    assert held[15].tolist() == [28, 28, 29, 29, 30, 30, 31, 31, *range_pairs(60)]


def range_pairs(first: int) -> list[int]:
    return [first + i // 2 for i in range(8)]


def test_cluster_of_four_gives_each_block_the_same_map() -> None:
    cluster = {"ctas_per_cga": [2, 2], "cta_split_num": [2, 2], "cta_order": [1, 0]}
    layout = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0], **cluster)
    tile = threads(BLOCKED, [16, 16])
    for block in range(4):
        held = threads(layout, [32, 32], block)
        row, column = 16 * (block // 2), 16 * (block % 2)
        assert (held[row : row + 16, column : column + 16] == tile).all()
        assert (held >= 0).sum() == 256


def test_cluster_without_a_cut_copies_the_tensor() -> None:
    cluster = {"ctas_per_cga": [2, 1], "cta_split_num": [1, 1], "cta_order": [1, 0]}
    layout = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0], **cluster)
    assert layout.to_linear([16, 16]).basis("block") == ((0, 0),)


def test_dot_operand_of_a_cluster_is_whole_along_k() -> None:
    cluster = {"ctas_per_cga": [2, 2], "cta_split_num": [2, 2], "cta_order": [1, 0]}
    parent = L.NVMMADistributedLayout([2, 0], [2, 2], [16, 8], **cluster)
    a = L.DotOperandLayout(0, parent, 2).to_linear([64, 32])
    assert a.basis("block") == ((0, 0), (32, 0))


def test_doubles_take_four_elements_along_k() -> None:
    parent = L.NVMMADistributedLayout([2, 0], [1, 1], [8, 8])
    assert parent.to_linear([8, 8]).basis("register") == ((0, 1),)
    assert L.DotOperandLayout(0, parent, 1).to_linear([8, 4]).basis("register") == ()


@given(st.data())
def test_distributed_layouts_cover_every_shape(data: st.DataObject) -> None:
    layout = data.draw(strategies.distributed())
    shape = data.draw(strategies.shapes(layout.rank))
    linear = layout.to_linear(shape)
    assert linear.in_dims == ("register", "lane", "warp", "block")
    assert list(linear.out_sizes.values()) == shape
    assert linear.is_surjective()


@given(st.data())
def test_shared_layouts_are_bijections_of_a_block(data: st.DataObject) -> None:
    layout = data.draw(st.one_of(strategies.swizzled(), strategies.padded()))
    shape = data.draw(strategies.shapes(layout.rank))
    linear = layout.to_linear(shape)
    assert linear.is_surjective()
    assert linear.sublayout(["offset"], linear.out_names).is_injective()


@pytest.mark.matrix
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("width", [32, 64, 128])
@pytest.mark.parametrize("shape", [[8, 128], [64, 256], [512, 128], [2, 16, 128], [4, 2, 512]])
def test_nvmma_swizzle_matches_the_address_formula(
    shape: list[int], width: int, bits: int, transposed: bool
) -> None:
    """XOR bits 4..6 of the byte address with bits 7..9, as the hardware does."""
    turned = [shape[-1], *shape[:-1]] if transposed else shape
    layout = L.NVMMASharedLayout(width, bits, len(shape), transposed)
    linear = layout.to_linear(turned).sublayout(["offset"], [f"dim{i}" for i in range(len(shape))])
    at = linear.apply_arrays(offset=np.arange(linear.total_in_size))
    column = at["dim0"] if transposed else at[f"dim{len(shape) - 1}"]
    byte = np.arange(linear.total_in_size) * bits // 8
    swizzled = byte ^ (byte >> 7 & width // 16 - 1) << 4
    panel = 8 * width // bits
    assert (column % panel == swizzled % width * 8 // bits).all()
    assert linear.is_bijective()


@given(strategies.padded(), st.integers(0, 4096))
def test_padding_counts_the_gaps_before(layout: L.PaddedSharedLayout, offset: int) -> None:
    gaps = [
        gap for every, gap in layout.interval_padding_pairs for _ in range(every, offset + 1, every)
    ]
    assert layout.padded_offset(offset) == offset + sum(gaps)


MMA = L.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
COLUMN = L.DistributedLinearLayout([[1]], [[2 << i] for i in range(5)], [], [], [64])
ROWS = L.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]).to_linear([32, 32])
COLUMNS = L.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1]).to_linear([32, 32])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: L.BlockedLayout([2], [16], [1], [0]), "a warp has 32"),
        (lambda: L.BlockedLayout([3], [32], [1], [0]), "has 3, which is no power of two"),
        (lambda: L.BlockedLayout([1], [32], [1], [1]), r"permutation of 0\.\.0"),
        (lambda: L.BlockedLayout([1, 1], [32], [1], [0]), "it needs 1 numbers"),
        (lambda: L.BlockedLayout([], [], [], []), "at least one dim"),
        (lambda: L.BlockedLayout("2", [32], [1], [0]), "list of integers"),
        (lambda: L.BlockedLayout([1], [32], [1], [0], [2]), "describe a cluster together"),
        (lambda: L.BlockedLayout([1], [32], [1], [0], [1], [2], [0]), "cuts a dim into 2"),
        (lambda: BLOCKED.to_linear([16]), "lays out 2 dims"),
        (lambda: BLOCKED.to_linear([16, 24]), "24, which is no power of two"),
        (lambda: L.SliceLayout(2, BLOCKED), "slice along dim 2"),
        (lambda: L.SliceLayout(0, L.SwizzledSharedLayout(1, 1, 1, [1, 0])), "no distributed"),
        (lambda: L.NVMMADistributedLayout([4, 0], [1, 1], [16, 8]), r"\[2, 0\] or \[3, 0\]"),
        (lambda: L.NVMMADistributedLayout([2, 0], [1, 1], [16, 16]), r"has \[16, 8\]"),
        (lambda: L.NVMMADistributedLayout([3, 0], [2, 1], [16, 8, 16]), "multiple of 4 warps"),
        (lambda: L.NVMMADistributedLayout([3, 0], [4, 1], [16, 512, 16]), "N from 8 to 256"),
        (lambda: L.NVMMADistributedLayout([3, 0], [4, 1], [16, 24, 16]), "no power of two"),
        (lambda: L.DotOperandLayout(2, MMA, 2), "operand_index is 2"),
        (lambda: L.DotOperandLayout(0, MMA, 3), "k_width is 3"),
        (lambda: L.DotOperandLayout(0, BLOCKED, 2), "must be 0"),
        (lambda: L.DotOperandLayout(0, L.SliceLayout(0, BLOCKED), 2), "must be an NVMMA"),
        (
            lambda: L.DotOperandLayout(1, L.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]), 2),
            "shared memory only",
        ),
        (lambda: L.SwizzledSharedLayout(3, 1, 1, [0]), "vec is 3"),
        (lambda: L.SwizzledSharedLayout(1, 1, 1, []), "at least one dim"),
        (lambda: L.NVMMASharedLayout(16, 8), "the hardware has 0, 32, 64, 128"),
        (lambda: L.NVMMASharedLayout(32, 4), "element_bitwidth is 4"),
        (lambda: L.NVMMASharedLayout(128, 16).to_linear([4, 64]), "needs 8 rows"),
        (lambda: L.NVMMASharedLayout(128, 16).to_linear([64, 32]), "64 columns"),
        (lambda: L.PaddedSharedLayout([], [0]), "needs pairs"),
        (lambda: L.PaddedSharedLayout([(32, 3)], [0]), "must be powers of two"),
        (lambda: L.PaddedSharedLayout([(32, 1), (32, 2)], [0]), "repeats an interval"),
        (lambda: L.DistributedLinearLayout([], [[1]], [], [], [2]), "makes 2 lanes"),
        (lambda: L.DistributedLinearLayout([[0]], [[1]] * 5, [], [], [4]), "reaches only"),
        (lambda: L.DistributedLinearLayout([], [[]] * 5, [], [], []), "at least one dim"),
        (lambda: L.NVMMASharedLayout(0, 16, 10**12), "TMA has 5 at most"),
        (lambda: L.NVMMASharedLayout(0, 16, True), "rank is True"),
        (lambda: L.PaddedSharedLayout([(1 << 70, 1)], [0]), "must be at most 262144"),
        (lambda: L.PaddedSharedLayout([(32, 1 << 62)], [0]), "must be at most 262144"),
        (lambda: L.DotOperandLayout(0, BLOCKED, np.array([1, 2])), "k_width is array"),
        (lambda: L.CTALayout.single("a"), "rank .'a'. holds 'a'"),
        (lambda: L.CTALayout.single(2).whole_along(7), "There is no dim 7"),
        (lambda: L.CTALayout.single(2).shape_of_one([4]), "cuts 2 dims; the shape is .4."),
        (lambda: COLUMN.to_linear(None), "The shape is None"),
        (
            lambda: L.DistributedLinearLayout.from_linear(L.LinearLayout.identity(32, "at", "x")),
            "other inputs than register",
        ),
        (lambda: L.shared_for_wgmma(None, [1, 0], 16), "The shape is None"),
        (lambda: L.wgmma_order(1, [1, 1], 16), "no permutation"),
    ],
)
def test_illegal_parameters_are_one_sentence(make: object, sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence) as caught:
        make()  # type: ignore[operator]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("number", [1.0, True, "1", None])
def test_a_number_that_is_no_integer_is_refused(number: Any) -> None:
    mma = L.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    with pytest.raises(LayoutError, match="operand_index"):
        L.DotOperandLayout(number, mma, 2)
    with pytest.raises(LayoutError, match="slice along dim"):
        L.SliceLayout(number, mma)
    with pytest.raises(LayoutError, match="swizzle_byte_width"):
        L.NVMMASharedLayout(128.0, 16)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "box", "order", "sentence"),
    [
        ([0, 4], [0, 0], [1, 0], "shape is .0, 4.; every number must be at least 1"),
        ([4, 4], [0, 1], [1, 0], "size_per_thread is .0, 1.; every number must be at least 1"),
        ([4, 4], [1, 1], [0, 0], "order is .0, 0.; it must be a permutation of 0..1"),
        (4, [1], [0], "shape is 4; it must be a list"),
        ([4, 4], [1], [0], "do not have one number a dim each"),
    ],
)
def test_what_no_layout_can_cover_is_refused(
    shape: Any, box: list[int], order: list[int], sentence: str
) -> None:
    with pytest.raises(LayoutError, match=sentence):
        L.BlockedLayout.covering(shape, box, order, 4)
