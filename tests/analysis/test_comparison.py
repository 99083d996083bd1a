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
    ("after", "count"),
    [
        (load(32, 5, 4), "5"),
        (load(128, 20, 16), "5"),
        (load(32, 32, 4), "32"),
        (load(8, 4, 4), "16"),
    ],
)
def test_what_is_worse_is_named_with_both_counts(after: Traffic, count: str) -> None:
    assert worsened([FULL], [after]) == [f"load of A ({count} sectors for 32 iterations, 4 before)"]


def test_what_sampling_cannot_tell_from_equality_is_not_worse() -> None:
    assert worsened([FULL], [load(32, 4.07, 4)]) == []


def test_gains_of_one_access_do_not_pay_for_another() -> None:
    before = [load(32, 32, 4), load(32, 4, 4, "C")]
    after = [load(32, 4, 4), load(32, 8, 4, "C")]
    assert [worse.split(" (")[0] for worse in worsened(before, after)] == ["load of C"]


def test_accesses_of_one_buffer_are_compared_one_by_one_while_they_are_as_many() -> None:
    before = [load(32, 8, 4), load(32, 4, 4)]
    assert len(worsened(before, [load(32, 4, 4), load(32, 8, 4)])) == 1
    assert worsened(before, [load(32, 12, 4)]) == []


def test_a_part_of_a_buffer_is_compared_by_itself_and_told_by_the_name_of_the_whole() -> None:
    old = [Traffic(name, "load", 32, 4, sectors, 4) for name, sectors in (("A", 4), ("A_1", 32))]
    new = [Traffic(name, "load", 32, 4, 8, 4) for name in ("A_1", "A")]
    assert worsened(old, new, {"A_1": "A"}) == ["load of A (8 sectors for 32 iterations, 4 before)"]
    new = [Traffic("A_1", "load", 32, 4, 40, 4)]
    assert worsened(old[1:], new, {"A_1": "A"}) == [
        "load of A (40 sectors for 32 iterations, 32 before)"
    ]


def test_what_moved_nothing_before_is_worse_where_all_is_counted() -> None:
    after = [FULL, load(32, 2, 4, "C")]
    assert worsened([FULL], after) == []
    assert worsened([FULL], after, is_whole=True) == [
        "load of C (2 sectors for 32 iterations, 0 before)"
    ]
