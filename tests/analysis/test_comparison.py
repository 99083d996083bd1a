from __future__ import annotations

import pytest

from tvm_layout_ext.analysis.comparison import sectors_per_iteration, worsened
from tvm_layout_ext.analysis.sectors import Traffic


def load(iterations: float, sectors: float, least: float, buffer: str = "A") -> Traffic:
    return Traffic(buffer, "load", iterations, 4, sectors, least)


FULL = load(32, 4, 4)


def test_wider_requests_of_full_sectors_are_not_worse() -> None:
    wide = load(128, 16, 16)
    assert sectors_per_iteration([wide]) == sectors_per_iteration([FULL])
    assert worsened([FULL], [wide]) == []


@pytest.mark.parametrize(
    ("after", "only_at_ends"),
    [
        (load(32, 5, 4), True),
        (load(128, 20, 16), True),
        (load(128, 22, 16), False),
        (load(32, 32, 4), False),
        (load(8, 4, 4), False),
    ],
)
def test_what_is_worse_and_whether_only_at_the_ends_of_rows(
    after: Traffic, only_at_ends: bool
) -> None:
    (worse,) = worsened([FULL], [after])
    assert worse.only_at_ends is only_at_ends
    assert worse.text.startswith("load of A (")
    assert worse.text.endswith(" 4 before)")


def test_a_repeated_element_that_is_spread_is_no_matter_of_ends() -> None:
    (worse,) = worsened([load(32, 1, 1)], [FULL])
    assert not worse.only_at_ends


def test_gains_of_one_access_do_not_pay_for_another() -> None:
    before = [load(32, 32, 4), load(32, 4, 4, "C")]
    after = [load(32, 4, 4), load(32, 8, 4, "C")]
    assert [worse.text.split(" (")[0] for worse in worsened(before, after)] == ["load of C"]


def test_accesses_of_one_buffer_are_compared_one_by_one_while_they_are_as_many() -> None:
    before = [load(32, 8, 4), load(32, 4, 4)]
    assert len(worsened(before, [load(32, 4, 4), load(32, 8, 4)])) == 1
    assert worsened(before, [load(32, 12, 4)]) == []
