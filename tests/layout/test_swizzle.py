"""Bank conflicts and the optimal swizzle, checked lane by lane."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import strategies
from tvm_layout_ext import layout as L
from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.gpu.counts import count_shared
from tvm_layout_ext.layout.banks import bank_conflicts, vector_width, wavefronts
from tvm_layout_ext.layout.conversion.convert import Movement, movement, scratch_bytes
from tvm_layout_ext.layout.operands import shared_for_mma_sync
from tvm_layout_ext.layout.swizzle import optimal_swizzle, swizzle_conflicts

LANES = np.arange(32)


def offsets_of_lanes(
    side: L.LinearLayout, memory: L.LinearLayout, register: int, warp: int
) -> dict[str, np.ndarray]:
    """Where in memory each lane finds the element of one register."""
    at = side.apply_arrays(register=register, lane=LANES, warp=warp, block=0)
    return memory.apply_arrays(**at)


def requests(side: L.LinearLayout) -> list[tuple[int, int]]:
    sizes = side.in_sizes
    return [(r, w) for r in range(min(sizes["register"], 4)) for w in range(min(sizes["warp"], 2))]


def single_block(rank: int) -> st.SearchStrategy[L.Layout]:
    return strategies.blocked(rank).map(
        lambda b: L.BlockedLayout(b.size_per_thread, b.threads_per_warp, b.warps_per_cta, b.order)
    )


def plain_pairs() -> st.SearchStrategy[tuple[L.LinearLayout, L.LinearLayout]]:
    """Two blocked layouts of one 2-d tensor large enough that no lane holds a copy."""
    shape = st.tuples(st.integers(5, 7), st.integers(5, 7)).map(lambda e: [2 ** e[0], 2 ** e[1]])
    return st.tuples(single_block(2), single_block(2), shape).map(
        lambda t: (t[0].to_linear(t[2]), t[1].to_linear(t[2]))
    )


@given(single_block(2), strategies.swizzled(rank=2), st.sampled_from([32, 64]))
def test_conflicts_of_words_are_exact(
    registers: L.Layout, swizzle: L.SwizzledSharedLayout, bits: int
) -> None:
    shared = L.SwizzledSharedLayout(
        swizzle.vec, swizzle.per_phase, swizzle.max_phase, swizzle.order
    ).to_linear([64, 32])
    side = registers.to_linear([64, 32])
    moves = side.invert_and_compose(shared)
    width = vector_width(side, shared, bits)
    vectors = [1 << i for i in range(width.bit_length() - 1)]
    place = {v: i for i, v in enumerate(moves.flat_basis("register"))}
    low = sum(1 << place[v] for v in vectors)
    conflicts = bank_conflicts(side, shared, bits)
    access = width * bits // 8
    phases = access // min(access, 4)
    for register in (r for r in range(side.in_sizes["register"]) if not r & low):
        byte = moves.apply_arrays(register=register, lane=LANES, warp=0, block=0)["offset"]
        assert (byte % width == 0).all()
        assert wavefronts(byte * bits // 8, access, store=True) == phases * (conflicts + 1)


@given(plain_pairs(), st.sampled_from([32, 64]))
def test_conflicts_of_optimal_swizzle_are_exact(
    pair: tuple[L.LinearLayout, L.LinearLayout], bits: int
) -> None:
    swizzle = optimal_swizzle(*pair, bits)
    back = swizzle.invert()
    sizes = swizzle.in_sizes
    access = sizes["vector"] * bits // 8
    phases = max(1, access // 4)
    for side, conflicts in zip(pair, swizzle_conflicts(swizzle, *pair, bits), strict=True):
        for register, warp in requests(side):
            at = offsets_of_lanes(side, back, register, warp)
            slot = at["bank"] + sizes["bank"] * at["segment"]
            assert len(set(at["reps"].tolist())) == 1
            assert wavefronts(slot * access, access, store=True) == phases * (conflicts + 1)


def test_movement_in_registers_only() -> None:
    lanes, warp = [[0, 4], [0, 8], [0, 16], [1, 0], [2, 0]], [[4, 0]]
    a = L.DistributedLinearLayout([[0, 1], [0, 2]], lanes, warp, [], [8, 32]).to_linear([8, 32])
    b = L.DistributedLinearLayout([[0, 2], [0, 1]], lanes, warp, [], [8, 32]).to_linear([8, 32])
    assert movement(a, b) is Movement.REGISTERS
    assert movement(a, a) is Movement.NONE
    assert scratch_bytes(a, b, 16) == 0


def test_one_exchanged_bit_is_a_shuffle_and_two_are_not() -> None:
    def layout(registers: list[int], lanes: list[int]) -> L.LinearLayout:
        bases = ([[v] for v in registers], [[v] for v in lanes])
        return L.DistributedLinearLayout(*bases, [], [], [128]).to_linear([128])

    straight = layout([1, 2], [4, 8, 16, 32, 64])
    assert movement(straight, layout([4, 2], [1, 8, 16, 32, 64])) is Movement.SHUFFLES
    assert movement(straight, layout([4, 8], [1, 2, 16, 32, 64])) is Movement.SHARED


def test_blocks_of_a_cluster_cannot_convert_through_their_own_memory() -> None:
    def layout(order: list[int]) -> L.LinearLayout:
        blocked = L.BlockedLayout([1, 1], [4, 8], [1, 1], [1, 0], [2, 2], [2, 2], order)
        return blocked.to_linear([16, 16])

    assert movement(layout([0, 1]), layout([1, 0])) is Movement.CLUSTER
    with pytest.raises(LayoutError, match="between blocks"):
        scratch_bytes(layout([0, 1]), layout([1, 0]), 16)


@pytest.mark.parametrize("column", [0, 8])
def test_operand_swizzle_lets_ldmatrix_rows_miss_each_other(column: int) -> None:
    shared = shared_for_mma_sync(0, [64, 32], [1, 0], 16, 2).to_linear([64, 32])
    at = shared.invert().apply_arrays(dim0=np.arange(8), dim1=np.full(8, column))
    # Eight rows of 16 bytes are one phase of ldmatrix: 32 lanes' worth of words.
    assert wavefronts(2 * at["offset"], 16) == 1


def test_phases_of_reads_join_where_neighbours_share_an_address() -> None:
    """As the simulated GPU and the analysis of programs count them."""
    pairs = LANES // 2 * 16
    assert wavefronts(pairs, 16) == count_shared(pairs[None], pairs[None] >= 0, 16).wavefronts == 2
    assert wavefronts(pairs, 16, store=True) == 4
    assert wavefronts(np.full(32, -1), 4) == 0


def test_accesses_have_a_legal_width() -> None:
    with pytest.raises(LayoutError, match="not 3"):
        wavefronts(LANES, 3)
    with pytest.raises(LayoutError, match="at most 32 lanes, not 33"):
        wavefronts(np.zeros(33), 4)
    with pytest.raises(LayoutError, match="has 24 bits"):
        bank_conflicts(L.LinearLayout.empty(), L.LinearLayout.empty(), 24)
