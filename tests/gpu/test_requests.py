"""Units and wavefronts of requests against counts by sets, lane by lane."""

from __future__ import annotations

import numpy as np
import pytest

from tvm_layout_ext.gpu.requests import NOTHING, pieces


def units(address: int, width: int, piece: int) -> set[int]:
    return {byte // piece for byte in range(address, address + width)}


@pytest.mark.parametrize("piece", [4, 32])
@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("shift", [0, 1, 2, 4, 12])
def test_pieces_are_the_units_that_bytes_lie_in(piece: int, width: int, shift: int) -> None:
    """Also where addresses begin inside a unit, and where only idle lanes do."""
    random = np.random.default_rng(width + shift)
    addresses = random.integers(0, 64, (5, 32)) * width
    active = random.random((5, 32)) < 0.7
    active[0] = True
    addresses += np.where(active | (shift != 2), shift, 3)
    found = pieces(addresses, active, width, piece)
    for row, own, live in zip(found, addresses, active, strict=True):
        wanted = set().union(*(units(int(a), width, piece) for a in own[live]))
        assert set(row.tolist()) - {NOTHING} == wanted
