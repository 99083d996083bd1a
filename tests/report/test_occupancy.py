"""What a multiprocessor holds of a record's kernel, and what limits it."""

from __future__ import annotations

import pytest

from tests.report.page.logs import DEFAULT, measured
from tvm_layout_ext.report.occupancy import occupancy
from tvm_layout_ext.report.page import workloads


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "told"),
    [
        (256, 32, 0, "8 blocks, 64 of 64 warps, by threads and registers"),
        (128, 234, 67584, "2 blocks, 8 of 64 warps, by registers"),
        (64, 32, 100_000, "2 blocks, 4 of 64 warps, by shared memory"),
        (32, 16, 0, "32 blocks, 32 of 64 warps, by slots of blocks"),
        (1024, 64, 0, "1 block, 32 of 64 warps, by registers"),
    ],
)
def test_the_scarcest_resource_is_told(
    threads: int, registers: int, shared: int, told: str
) -> None:
    assert str(occupancy("sm_90a", threads, registers, shared)) == (
        f"A multiprocessor holds {told}."
    )


def test_unknown_registers_are_said() -> None:
    found = occupancy("sm_90a", 256, None, 0)
    assert str(found) == (
        "A multiprocessor holds at most 8 blocks, 64 of 64 warps, by threads; registers are "
        "unknown, as it was not compiled."
    )


def test_the_page_tells_the_winners() -> None:
    few = DEFAULT | {"threads": 64}
    slow = measured(0, 9.0, config=DEFAULT, registers=32, smem_bytes=65536)
    fast = measured(1, 8.0, config=few, registers=32, smem_bytes=65536)
    (view,) = workloads([slow, fast])
    assert "A multiprocessor holds 3 blocks, 6 of 64 warps, by shared memory." in view.verdict
