"""Parts of a split become slices of what it was made from."""

from __future__ import annotations

from typing import Any

import pytest
import tvm_ffi
from tvm import relax
from tvm.relax import op

from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.moves.slices import SplitsAsSlices


def test_parts_of_a_permutation_are_slices_before_it() -> None:
    def build(x: Any) -> Any:
        parts = op.split(op.permute_dims(x, [0, 2, 1]), 3, -1)
        return op.add(parts[0], parts[2])

    seen: list[list[int]] = []

    def look(call: relax.Call) -> None:
        if call.op.name == "relax.strided_slice":
            assert call.args[0].same_as(after.params[0])
            seen.append([int(one[0]) for one in call.args[1:4]])

    after = SplitsAsSlices()(relax_module(build, (4, 6, 8)))["main"]
    tvm_ffi.structural_walk(after.body, [(relax.Call, look)])
    assert seen == [[1, 0, 2], [1, 4, 6]]


def test_axes_of_a_symbolic_tensor_are_counted_from_the_front() -> None:
    """TVM 0.27 ends with "Check failed: axis < src_tensor_dim" where it lowers others."""
    mod = relax_module(lambda x: op.strided_slice(x, [-1], [2], [6]), ("n", 8))
    after = relax.transform.LegalizeOps()(SplitsAsSlices()(mod))
    assert after["main"].ret_ty.shape.values[1] == 4
    with pytest.raises(RuntimeError, match="axis < src_tensor_dim"):
        relax.transform.LegalizeOps()(mod)
