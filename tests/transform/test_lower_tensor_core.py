"""LowerTensorCore leaves what it is given as it is."""

from __future__ import annotations

import tvm

import tvm_layout_ext as tlx
from tvm_layout_ext.schedules import gemm


def test_a_schedule_may_be_lowered_twice() -> None:
    """The second lowering found intrinsics where it looked for blocks that ask for them."""
    config = gemm.OPERATOR.default_config() | {"tile_m": 64, "tile_n": 64}
    sch = gemm.schedule(gemm.compute((64, 64, 64), "float16"), config)
    text = sch.mod.script()
    first = tlx.lower(sch)
    assert sch.mod.script() == text
    tvm.ir.assert_structural_equal(tlx.lower(sch)["main"].body, first["main"].body, True)
