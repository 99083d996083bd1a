"""The plans of conversions, carried out on arrays of element numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from tests.programs.strategies import shapes, splits
from tvm_layout_ext import layout as L
from tvm_layout_ext.gpu.banks import request_wavefronts
from tvm_layout_ext.layout.banks import lanes_of_phase_log2, wavefronts
from tvm_layout_ext.layout.conversion.per_thread import bit_fields, per_thread, same_thread
from tvm_layout_ext.layout.conversion.round_trip import plan_round_trip
from tvm_layout_ext.layout.conversion.shuffles import plan_shuffles
from tvm_layout_ext.layout.f2 import rank


def elements(layout: L.LinearLayout, *dims: str) -> np.ndarray:
    """Number of the element under each index, one array axis a dim."""
    grid = np.indices([layout.in_sizes[dim] for dim in dims])
    zeros = {dim: 0 for dim in layout.in_dims if dim not in dims}
    out = layout.apply_arrays(**dict(zip(dims, grid, strict=True)), **zeros)
    return np.ravel_multi_index(list(out.values()), list(layout.out_sizes.values()))


@st.composite
def boxes(draw: st.DrawFn, warps: int, rank: int = 2) -> L.BlockedLayout:
    return L.BlockedLayout(
        draw(splits(2 ** draw(st.integers(0, 4)), rank)),
        draw(splits(32, rank)),
        draw(splits(warps, rank)),
        list(draw(st.permutations(range(rank)))),
    )


@st.composite
def any_layout(draw: st.DrawFn, warps: int) -> L.Layout:
    kind = draw(st.sampled_from(["blocked", "slice", "mma", "operand"]))
    if kind == "blocked":
        return draw(boxes(warps))
    if kind == "slice":
        return L.SliceLayout(draw(st.integers(0, 2)), draw(boxes(warps, 3)))
    mma = L.NVMMADistributedLayout([2, 0], draw(splits(warps, 2)), [16, 8])
    return mma if kind == "mma" else L.DotOperandLayout(draw(st.integers(0, 1)), mma, 2)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[L.LinearLayout, L.LinearLayout]:
    shape, warps = draw(shapes(2)), 2 ** draw(st.integers(0, 3))
    first, second = (draw(any_layout(warps)).to_linear(shape) for _ in range(2))
    return first.without_zero_bases("register"), second.without_zero_bases("register")


@st.composite
def close_pairs(draw: st.DrawFn) -> tuple[L.LinearLayout, L.LinearLayout]:
    """A layout, and the same one with its bits of registers and lanes mixed a little."""
    first = draw(boxes(2)).to_linear(draw(shapes(2))).without_zero_bases("register")
    registers, lanes = list(first.basis("register")), list(first.basis("lane"))
    registers = draw(st.permutations(registers))
    lanes = draw(st.permutations(lanes))
    if registers and draw(st.booleans()):
        i, j = draw(st.integers(0, len(registers) - 1)), draw(st.integers(0, 4))
        registers[i], lanes[j] = lanes[j], registers[i]
    bases = {"register": registers, "lane": lanes, "warp": first.basis("warp"), "block": ()}
    second = L.LinearLayout.from_bases(bases, first.out_sizes)
    return first, second.without_zero_bases("register")


def shuffled(src: L.LinearLayout, dst: L.LinearLayout) -> np.ndarray | None:
    plan = plan_shuffles(src, dst)
    if plan is None:
        return None
    # One select on each side does.
    assert max(rank(one.flat_basis("lane")) for one in (plan.send, plan.place)) <= 1
    registers = elements(src, "register", "lane", "warp")
    exchanges, lane = np.indices((plan.source.in_sizes["register"], 32))
    sent = registers[elements(plan.send, "register", "lane"), lane]
    taken = sent[exchanges, elements(plan.source, "register", "lane")]
    return taken[elements(plan.place, "register", "lane"), lane]


@given(st.one_of(close_pairs(), pairs()))
def test_a_plan_of_shuffles_is_right(pair: tuple[L.LinearLayout, L.LinearLayout]) -> None:
    src, dst = pair
    got = shuffled(src, dst)
    event(f"{L.movement(src, dst).value} {got is not None}")
    if got is not None:
        np.testing.assert_array_equal(got, elements(dst, "register", "lane", "warp"))


@st.composite
def mixed(draw: st.DrawFn, size: int, warps: int) -> L.LinearLayout:
    """Any layout of 2^size elements: its vectors may have several bits, or none."""
    vectors = [1 << bit for bit in draw(st.permutations(range(size)))]
    at = st.integers(0, size - 1)
    for i, j in draw(st.lists(st.tuples(at, at), max_size=10)):
        vectors[i] ^= vectors[j] if i != j else 0
    for _ in range(draw(st.integers(0, 1))):
        vectors.insert(draw(st.integers(0, 4 + warps)), 0)
    threads = {"lane": vectors[:5], "warp": vectors[5 : 5 + warps]}
    bases = {"register": vectors[5 + warps :], **threads, "block": []}
    flat = {name: [(v,) for v in own] for name, own in bases.items()}
    return L.LinearLayout.from_bases(flat, {"dim0": 1 << size})


@st.composite
def mixed_pairs(draw: st.DrawFn) -> tuple[L.LinearLayout, L.LinearLayout]:
    size, warps = draw(st.integers(7, 12)), draw(st.integers(0, 2))
    return draw(mixed(size, warps)), draw(mixed(size, warps))


@given(mixed_pairs(), st.sampled_from([8, 16, 32, 64, 128]))
def test_layouts_of_sums_have_the_fewest_conflicts(
    pair: tuple[L.LinearLayout, L.LinearLayout], bits: int
) -> None:
    """A segment meets a phase of d dims of n at least where it has more than n - d itself."""
    swizzle = L.optimal_swizzle(*pair, bits)
    segment = len(swizzle.flat_basis("segment")) + len(swizzle.flat_basis("reps"))
    vector = swizzle.flat_basis("vector")
    lanes = lanes_of_phase_log2(bits << len(vector))
    phases = [rank([*vector, *side.flat_basis("lane")[:lanes]]) for side in pair]
    size = pair[0].rank

    found = L.swizzle_conflicts(swizzle, *pair, bits)

    assert found == tuple((1 << max(0, segment - (size - d))) - 1 for d in phases)


@given(st.one_of(pairs(), mixed_pairs()), st.sampled_from([8, 16, 32, 64]))
def test_a_round_trip_brings_every_element(
    pair: tuple[L.LinearLayout, L.LinearLayout], bits: int
) -> None:
    src, dst = pair
    plan = plan_round_trip(src, dst, bits)
    before, after = (elements(per_thread(side), "register", "thread") for side in pair)
    written, read = (
        plan.elements * side.apply_arrays(register=r, thread=t)["round"]
        + side.apply_arrays(register=r, thread=t)["offset"]
        for side, (r, t) in zip(
            (plan.write.offsets, plan.read.offsets),
            (np.indices(before.shape), np.indices(after.shape)),
            strict=True,
        )
    )
    for way in (plan.write, plan.read):
        # All threads take a register to memory in one round; so do those of a vector.
        rounds = way.offsets.sublayout(way.offsets.in_dims, ["round"])
        assert not any(rounds.flat_basis("thread"))
        assert not any(rounds.flat_basis("register")[bit] for bit in way.vector)
    memory = np.full(plan.elements * plan.rounds, -1)
    memory[written] = before
    np.testing.assert_array_equal(memory[read], after)


@given(st.one_of(pairs(), mixed_pairs()), st.sampled_from([8, 16, 32, 64]))
def test_no_phase_of_a_round_trip_meets_a_bank_twice(
    pair: tuple[L.LinearLayout, L.LinearLayout], bits: int
) -> None:
    if L.movement(*pair) is not L.Movement.SHARED:
        return
    plan = plan_round_trip(*pair, bits)
    for way in (plan.write, plan.read):
        width = bits // 8 << len(way.vector)
        for register in (0, way.offsets.in_sizes["register"] - 1):
            first = register & ~sum(1 << bit for bit in way.vector)
            offsets = way.offsets.apply_arrays(register=first, thread=np.arange(32))["offset"]
            assert wavefronts(offsets * (bits // 8), width) <= max(1, width * 32 // 128)


@given(mixed_pairs(), st.sampled_from([8, 16, 32, 64]))
def test_requests_between_layouts_of_sums_are_the_least(
    pair: tuple[L.LinearLayout, L.LinearLayout], bits: int
) -> None:
    """Phases of reads that join, too, meet no bank."""
    vectors = [v for side in pair for dim in side.in_dims for v in side.flat_basis(dim)]
    if L.movement(*pair) is not L.Movement.SHARED or all(v.bit_count() < 2 for v in vectors):
        return
    plan = plan_round_trip(*pair, bits)
    if bits >= 32:
        # Both sides move the swizzle's vectors whole.
        vector = L.optimal_swizzle(*pair, bits).flat_basis("vector")
        assert min(len(plan.write.vector), len(plan.read.vector)) >= len(vector)
    for way, side in zip((plan.write, plan.read), pair, strict=True):
        copies = per_thread(side).free_variable_masks()["thread"] if way is plan.write else 0
        low = sum(1 << bit for bit in way.vector)
        first = [[r] for r in range(way.offsets.in_sizes["register"]) if not r & low]
        threads = np.arange(32)
        offsets = way.offsets.apply_arrays(register=np.array(first), thread=threads)["offset"]
        live = np.broadcast_to(threads & copies == 0, offsets.shape)
        width = bits // 8 << len(way.vector)
        event(f"{width} bytes, copies in {side.flat_basis('lane').count(0)} lanes' bits")

        waves, least = request_wavefronts(
            offsets * (bits // 8), live, width, joins=way is plan.read
        )

        np.testing.assert_array_equal(waves, least)


@pytest.mark.parametrize(("bits", "run"), [(8, 2), (16, 2), (32, 2), (64, 1)])
def test_vectors_stay_whole_where_both_sides_are_mixed_alike(bits: int, run: int) -> None:
    """Gray codes of the elements: lanes have bits of a vector's registers, but no sum has them."""

    def gray(vectors: list[int]) -> L.LinearLayout:
        own = [(v ^ v >> 1,) for v in vectors]
        bases = {"register": own[:4], "lane": own[4:9], "warp": own[9:], "block": []}
        return L.LinearLayout.from_bases(bases, {"dim0": 1024})

    rows = gray([1, 2, 256, 512, 4, 8, 16, 32, 64, 128])
    columns = gray([1, 2, 4, 8, 64, 128, 256, 512, 16, 32])
    plan = plan_round_trip(rows, columns, bits)
    assert min(len(plan.write.vector), len(plan.read.vector)) >= run


@given(pairs())
def test_fields_compute_the_same_coordinates(pair: tuple[L.LinearLayout, L.LinearLayout]) -> None:
    layout = per_thread(pair[0])
    indices = dict(zip(layout.in_dims, np.indices(tuple(layout.in_sizes.values())), strict=True))
    wanted = layout.apply_arrays(**indices)
    for name in layout.out_names:
        total = 0
        for field in bit_fields(layout, name):
            value = 0
            for dim, bit in field.sources:
                value = value ^ (indices[dim] >> bit) % (1 << field.width)
            total = total + (value << field.first)
        np.testing.assert_array_equal(total * np.ones_like(wanted[name]), wanted[name])


@given(pairs())
def test_registers_of_the_same_thread_hold_the_wanted_elements(
    pair: tuple[L.LinearLayout, L.LinearLayout],
) -> None:
    wanted, held = map(per_thread, pair)
    registers = same_thread(wanted, held)
    event(str(registers is not None))
    if registers is None:
        return
    own = registers.apply_arrays(register=np.arange(wanted.in_sizes["register"]))["register"]
    np.testing.assert_array_equal(
        elements(held, "register", "thread")[own], elements(wanted, "register", "thread")
    )


def test_every_thread_has_what_its_slice_of_a_parent_needs() -> None:
    parent = L.BlockedLayout([2, 2], [8, 4], [2, 2], [1, 0])
    whole = per_thread(parent.to_linear([64, 32]))
    rows = per_thread(L.SliceLayout(1, parent).to_linear([64]))
    registers = same_thread(whole.sublayout(whole.in_dims, ["dim0"]), rows)
    assert registers is not None
    assert registers.basis("register") == ((0,), (1,), (0,), (2,))
