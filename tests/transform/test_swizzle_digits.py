"""Shared buffers laid out by strides of their indices' digits: accesses follow, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.transform.swizzle_programs import data, transpose
from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.simulate import simulate


@pytest.mark.parametrize(
    ("mode", "conflicts"),
    [("32:32;32:1", True), ("32:33;32:1", False), ("16:33,2:561;32:1", True)],
)
def test_rows_are_padded_and_set_off(mode: str, conflicts: bool) -> None:
    """A gap of a row after 16 of them moves the later ones on by a bank: row 31 meets row 0."""
    a = data((32, 32), "float32")
    report = simulate(transpose(mode), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert not report.hazards
    assert (report.bank_conflicts > 0) is conflicts


def test_rows_lie_in_pairs() -> None:
    a = data((32, 32), "int8")
    report = simulate(transpose("2:1,16:68;32:2", "int8"), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    assert (report.bank_conflicts, report.hazards) == (0, [])


def test_vectors_along_a_mode_of_stride_1_follow() -> None:
    a = data((32, 32), "float32")
    report = simulate(transpose("32:36;32:1", vector=4), a, None)
    np.testing.assert_array_equal(report.outputs["B"], a.T)
    stores = [x for x in report.accesses if x.scope == "shared" and x.kind == "store"]
    assert {x.vector_bytes for x in stores} == {16}


def test_a_shape_that_does_not_fit_is_refused() -> None:
    a = data((32, 32), "float32")
    with pytest.raises(LayoutError, match="32 elements along dim 0, the modes 16"):
        simulate(transpose("16:32;32:1"), a, None)
