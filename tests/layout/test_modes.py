"""Layouts whose dims fall into modes, each an extent and a stride."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.layout.modes import modes_of


@pytest.mark.parametrize(
    "text", ["2:1,50:200;100:2", "17:109,2:2616;100:1", "9:2;2:1,9:30,2:660;7:900"]
)
def test_text_is_read_back(text: str) -> None:
    assert str(modes_of(text)) == text


def test_a_gap_sets_the_second_half_of_the_rows_off() -> None:
    rows = modes_of("3:8,2:56;4:1").offsets([np.arange(5), np.zeros(5, int)])
    assert rows.tolist() == [0, 8, 16, 56, 64]


def test_elements_reach_to_the_last_offset_in_use() -> None:
    modes = modes_of("3:8,2:56;4:1")
    places = modes.offsets(np.indices((5, 4)))
    assert modes.elements([5, 4]) == places.max() + 1 == 68


@pytest.mark.parametrize("text", ["2:1,a:4", "2;3", "2:0;3:1", "-2:1", "2:1:3", ""])
def test_what_is_no_layout_is_refused(text: str) -> None:
    with pytest.raises(LayoutError, match="it must look like"):
        modes_of(text)


def test_a_shape_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(LayoutError, match="It has 3 dims, the modes are of 2"):
        modes_of("4:8;8:1").check([4, 8, 2])
    with pytest.raises(LayoutError, match="It has 9 elements along dim 1, the modes 8"):
        modes_of("4:8;8:1").check([4, 9])
    with pytest.raises(LayoutError, match="several elements at one offset"):
        modes_of("4:4;8:1").check([4, 8])
    modes_of("4:8;8:1").check([4, 8])
