from __future__ import annotations

from tvm_layout_ext.coalesce.comparison import sectors_per_iteration
from tvm_layout_ext.coalesce.sectors import Traffic


def load(iterations: float, sectors: float, least: float, buffer: str = "A") -> Traffic:
    return Traffic(buffer, "load", iterations, 4, sectors, least)


FULL = load(32, 4, 4)


def test_wider_requests_of_full_sectors_cost_the_same() -> None:
    wide = load(128, 16, 16)
    assert sectors_per_iteration([wide]) == sectors_per_iteration([FULL])
