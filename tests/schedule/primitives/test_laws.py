"""Laws of the primitives that take a block: what names none is refused, and nothing changes."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import s_tir

from tests.programs.products import Product
from tvm_layout_ext import ScheduleError

#: Every such primitive with the arguments after the block.
_CALLS: dict[str, tuple[Any, ...]] = {
    "distribute_epilogue": (),
    "eviction_policy": ("evict_last",),
    "set_fragment_layout": (0, "Blocked([1, 4], [4, 8], [4, 1], [1, 0])"),
    "split_k": (2,),
    "spread_sums": (),
    "store_matrix": (),
    "use_tensor_core": (),
}


@pytest.mark.parametrize("block", ["nothing", None, 5])
@pytest.mark.parametrize("name", _CALLS)
def test_what_names_no_block_is_refused(name: str, block: Any) -> None:
    sch = s_tir.Schedule(Product().func())
    before = sch.mod
    with pytest.raises(ScheduleError, match=r"finds no single block named .*\.$"):
        getattr(sch, name)(block, *_CALLS[name])
    tvm.ir.assert_structural_equal(sch.mod, before)
