"""``sch.prefetch``: its annotation, its trace, and what it refuses."""

from __future__ import annotations

import pytest
from tvm import s_tir

from tests.programs.prefetched import scheduled
from tvm_layout_ext import ScheduleError
from tvm_layout_ext.transform.prefetch.prefetch_registers import PREFETCH


def test_it_annotates_the_load() -> None:
    sch = scheduled(4, 4, 3)
    assert int(sch.get(sch.get_sblock("a_shared_local")).annotations[PREFETCH]) == 1


def test_only_registers_can_be_prefetched() -> None:
    sch = scheduled(4, 4, 3)
    with pytest.raises(ScheduleError, match="a_shared writes a_shared in shared"):
        sch.prefetch("a_shared")
    with pytest.raises(ScheduleError, match="out writes out in global"):
        s_tir.Schedule.prefetch(sch, "out")
