from __future__ import annotations

import numpy as np

from tvm_layout_ext.simulate.memory.arrived_box import ArrivedBox, unknown_box
from tvm_layout_ext.simulate.races import Clocks, Shadow
from tvm_layout_ext.simulate.report import Site

LOAD, OTHER = 3, 4


def _written(by: int) -> tuple[Shadow, Clocks]:
    shadow, clocks = Shadow(256, across_blocks=False), Clocks(1, 1, 4)
    cells = np.arange(64, 128)
    shadow.writes[cells] = shadow.tag(np.zeros(64, np.int64), by, clocks)
    return shadow, clocks


def _read(box: ArrivedBox, shadow: Shadow, clocks: Clocks, low: int, high: int, warp: int) -> bool:
    cells = np.arange(low, high)
    return unknown_box([box], cells, shadow.writes[cells], warp, clocks) is not None


def _box() -> ArrivedBox:
    return ArrivedBox(64, 127, LOAD, Site("tiles", "load", 1), 0)


def test_who_waited_and_who_comes_behind_knows_the_bytes() -> None:
    (shadow, clocks), box = _written(LOAD), _box()
    assert _read(box, shadow, clocks, 100, 140, warp=1)
    box.wait(1, clocks.now)
    assert not _read(box, shadow, clocks, 100, 140, warp=1)
    assert _read(box, shadow, clocks, 100, 140, warp=2)
    clocks.join_blocks(np.array([True]))
    assert not _read(box, shadow, clocks, 100, 140, warp=2)


def test_a_wait_behind_the_last_barrier_is_known_to_its_warp_alone() -> None:
    (shadow, clocks), box = _written(LOAD), _box()
    clocks.join_blocks(np.array([True]))
    box.wait(1, clocks.now)
    assert _read(box, shadow, clocks, 64, 65, warp=2)
    assert not _read(box, shadow, clocks, 64, 65, warp=1)


def test_other_cells_and_what_others_wrote_since_are_none_of_it() -> None:
    (shadow, clocks), box = _written(LOAD), _box()
    assert not _read(box, shadow, clocks, 0, 64, warp=1)
    assert not _read(box, shadow, clocks, 128, 200, warp=1)
    shadow, clocks = _written(OTHER)
    assert not _read(box, shadow, clocks, 64, 128, warp=1)
