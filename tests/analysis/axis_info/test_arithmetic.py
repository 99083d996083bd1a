"""The transfer rules, against every element of the values that they describe."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden import tracing
from tests.golden.tracing import TL, Value
from tvm_layout_ext.analysis.axis_info import arithmetic as ai
from tvm_layout_ext.analysis.axis_info import values
from tvm_layout_ext.analysis.axis_info.coalescing import MemoryAccess, choose_layout
from tvm_layout_ext.analysis.axis_info.values import BIG, AxisInfo

SHAPE = (8, 16)
Pair = tuple[Value, np.ndarray]


def check(info: AxisInfo, values: np.ndarray) -> None:
    """Every claim holds of every aligned group, the last one perhaps cut off."""
    if info.constant is not None:
        assert (values == info.constant).all(), "constant"
    for axis, size in enumerate(values.shape):
        lines = np.moveaxis(values, axis, -1).reshape(-1, size)
        for run, step, what in (
            (info.contiguity[axis], 1, "run"),
            (info.constancy[axis], 0, "group"),
        ):
            inner = np.arange(1, size) % run != 0
            assert (np.diff(lines, axis=-1)[:, inner] == step).all(), what
        first = lines[:, :: info.contiguity[axis]]
        assert (first % min(info.divisibility[axis], 1 << 31) == 0).all(), "divisibility"


def leaves() -> st.SearchStrategy[Pair]:
    rows, columns = np.indices(SHAPE)
    low = st.sampled_from([0, 1, 4, 8, 12])

    def ranges(start: int, axis: int) -> Pair:
        value = tracing.arange(start, start + SHAPE[axis])[None if axis else slice(None)]
        value = value if axis else tracing.expand_dims(tracing.arange(start, start + SHAPE[0]), 1)
        return tracing.broadcast_to(value, SHAPE), start + (columns if axis else rows)

    def scalars(multiple: int, divisor: int) -> Pair:
        info = values.splat(AxisInfo.argument(divisor), SHAPE)
        return Value(info, SHAPE), np.full(SHAPE, multiple * divisor)

    def constants(number: int) -> Pair:
        return Value(AxisInfo.of_constant(number, SHAPE), SHAPE), np.full(SHAPE, number)

    return st.one_of(
        st.builds(ranges, low, st.sampled_from([0, 1])),
        st.builds(scalars, st.integers(1, 9), st.sampled_from([1, 2, 8, 16])),
        st.builds(constants, st.sampled_from([0, 1, 2, 3, 4, 6, 8, 16])),
    )


OPERATIONS = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "max": np.maximum,
    "min": np.minimum,
}


def combined(children: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    def apply(name: str, left: Pair, right: Pair) -> Pair:
        return tracing.binary(name, left[0], right[0]), OPERATIONS[name](left[1], right[1])

    def choose(name: str, left: Pair, right: Pair, then: Pair, other: Pair) -> Pair:
        condition = ai.COMPARISONS[name](left[1], right[1])
        compared = tracing.comparison(name, left[0], right[0])
        return TL.where(compared, then[0], other[0]), np.where(condition, then[1], other[1])

    return st.one_of(
        st.builds(apply, st.sampled_from(sorted(OPERATIONS)), children, children),
        st.builds(
            choose, st.sampled_from(sorted(ai.COMPARISONS)), children, children, children, children
        ),
    )


VALUES = st.recursive(leaves(), combined, max_leaves=8)


@given(VALUES)
def test_claims_hold_everywhere(pair: Pair) -> None:
    check(pair[0].info, pair[1])


@given(VALUES, VALUES, st.sampled_from(["div", "rem", "shr"]))
def test_division_of_non_negative_numbers(left: Pair, right: Pair, name: str) -> None:
    a, b = np.abs(left[1]), np.abs(right[1])
    if (left[1] < 0).any() or (right[1] <= 0).any() or (name == "shr" and (b > 40).any()):
        return
    operation = {"div": np.floor_divide, "rem": np.remainder, "shr": np.right_shift}[name]
    check(tracing.binary(name, left[0], right[0]).info, operation(a, b))


@given(VALUES, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), VALUES)
def test_comparisons(left: Pair, name: str, right: Pair) -> None:
    compared = tracing.comparison(name, left[0], right[0])
    check(compared.info, ai.COMPARISONS[name](left[1], right[1]).astype(int))


@given(VALUES, st.sampled_from([(128,), (2, 64), (4, 4, 8), (16, 8), (8, 16), (8, 1, 16)]))
def test_reshapes(pair: Pair, shape: tuple[int, ...]) -> None:
    check(tracing.reshape(pair[0], shape).info, pair[1].reshape(shape))


@given(VALUES)
def test_transposes(pair: Pair) -> None:
    check(tracing.trans(pair[0]).info, pair[1].T)


@given(VALUES, VALUES)
def test_join_claims_only_what_both_have(left: Pair, right: Pair) -> None:
    joined = values.join(left[0].info, right[0].info)
    check(joined, left[1])
    check(joined, right[1])


@given(VALUES, st.sampled_from([8, 16, 32, 64]), st.sampled_from([1, 4, 16, 256]))
def test_addresses(pair: Pair, bits: int, base: int) -> None:
    start = values.splat(AxisInfo.argument(base), SHAPE)
    info = ai.add_pointer(start, pair[0].info, SHAPE, bits)
    addresses = 3 * base + pair[1] * (bits // 8)
    in_elements = AxisInfo(info.contiguity, (1,) * 2, info.constancy)
    check(in_elements, addresses // (bits // 8))
    for axis, size in enumerate(SHAPE):
        lines = np.moveaxis(addresses, axis, -1).reshape(-1, size)
        first = lines[:, :: gcd(info.contiguity[axis], size)]
        assert (first % min(info.divisibility[axis], 1 << 40) == 0).all()


@pytest.mark.parametrize(
    ("left", "right", "name", "expected"),
    [
        (AxisInfo.of_range(0, 64), AxisInfo.of_constant(2, (64,)), "shl", ((1,), (4,), (1,))),
        (AxisInfo.of_range(0, 64), AxisInfo.of_constant(0, (64,)), "shr", ((64,), (BIG,), (1,))),
        (AxisInfo.of_range(0, 64), AxisInfo.of_constant(4, (64,)), "div", ((1,), (1,), (4,))),
        (AxisInfo.of_range(0, 64), AxisInfo.of_constant(1, (64,)), "div", ((64,), (BIG,), (1,))),
        (AxisInfo.of_range(8, 72), AxisInfo.of_constant(16, (64,)), "rem", ((8,), (8,), (1,))),
    ],
)
def test_single_rules(
    left: AxisInfo, right: AxisInfo, name: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    info = ai.apply_binary(name, left, right, (64,))
    assert (info.contiguity, info.divisibility, info.constancy) == expected


@pytest.mark.parametrize(("name", "right"), [("div", 0), ("rem", 0), ("shl", -1), ("shr", 99)])
def test_undefined_constant_operations_claim_nothing_of_a_value(name: str, right: int) -> None:
    info = ai.apply_binary(name, AxisInfo.of_constant(8), AxisInfo.of_constant(right), (1,))
    assert info.constant is None


def test_a_select_by_a_constant_is_that_side() -> None:
    left, right = AxisInfo.of_range(0, 8), AxisInfo.of_range(1, 9)
    assert values.select(AxisInfo.of_constant(1), left, right, scalar=True) == left
    assert values.select(AxisInfo.of_constant(0), left, right, scalar=True) == right


def test_a_load_keeps_only_constancy() -> None:
    pointer, mask = AxisInfo((1,), (16,), (8,)), AxisInfo((1,), (1,), (4,))
    assert values.load(pointer, mask) == AxisInfo((1,), (1,), (4,))


def test_stores_never_exceed_their_own_width() -> None:
    runs = AxisInfo((1024,), (16,), (1,))
    load = MemoryAccess(runs, (1024,), 16, True)
    store = MemoryAccess(runs, (1024,), 32, False)
    assert choose_layout(load, [load, store], 4).size_per_thread == (8,)
    assert choose_layout(store, [load, store], 4).size_per_thread == (4,)


def test_small_tiles_do_not_starve_threads() -> None:
    load = MemoryAccess(AxisInfo((256,), (16,), (1,)), (256,), 16, True)
    assert choose_layout(load, [load], 4).size_per_thread == (2,)
