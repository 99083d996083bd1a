"""Segments of swizzles that serve more than two ways of access."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tvm_layout_ext.layout.conversion.segments import complement_segment, place_bits
from tvm_layout_ext.layout.f2 import intersection, rank

DIMENSION = 8
SPAN = st.lists(st.integers(1, (1 << DIMENSION) - 1), min_size=1, max_size=4)


@given(st.lists(SPAN, min_size=1, max_size=5), st.integers(0, 2))
def test_a_segment_meets_no_span_and_keeps_off_the_vector(
    spans: list[list[int]], vector: int
) -> None:
    segment = complement_segment(spans, DIMENSION, 3, (1 << vector) - 1)
    if segment is None:
        # Beside one or two spans of 16 vectors there is always room for 8.
        assert len(spans) > 2 or vector
        return
    assert rank(segment) == len(segment) == 3
    assert all(intersection(segment, span) == 0 for span in spans)
    assert not any(one & ((1 << vector) - 1) for one in segment)


def test_there_is_no_segment_beside_everything() -> None:
    assert complement_segment([[1, 2, 4]], 3, 1) is None
    assert complement_segment([[1], [2], [3]], 2, 1) is None


def test_no_spans_leave_the_first_coordinates() -> None:
    assert complement_segment([], 4, 2) == [1, 2]


@given(st.lists(SPAN, min_size=1, max_size=2))
def test_offsets_are_a_bijection_and_lanes_of_a_span_meet_in_no_bank(
    spans: list[list[int]],
) -> None:
    segment = complement_segment(spans, DIMENSION, DIMENSION - 4)
    if segment is None:
        return
    bits = place_bits(segment, 0, DIMENSION)
    index = np.arange(1 << DIMENSION)
    offsets = np.bitwise_xor.reduce([(index >> i & 1) * bit for i, bit in enumerate(bits)])
    assert len(np.unique(offsets)) == len(index)
    for span in spans:
        lanes = {0}
        for vector in span:
            lanes |= {lane ^ vector for lane in lanes}
        assert len({offsets[lane] % 16 for lane in lanes}) == len(lanes)


def test_a_vector_stays_in_order_and_aligned() -> None:
    bits = place_bits([0b10100, 0b01000], 2, 5)
    assert bits[:2] == [1, 2]
    assert not any(bit & 3 for bit in bits[2:])
