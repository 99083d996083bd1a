"""Parts of a split become slices of what it was made from."""

from __future__ import annotations

import pytest
import tvm_ffi
from tvm import relax, tirx
from tvm.relax import op

from tvm_layout_ext.models.moves.slices import SplitsAsSlices


def test_parts_of_a_permutation_are_slices_before_it() -> None:
    x = relax.Var("x", relax.TensorType((4, 6, 8), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            parts = builder.emit(op.split(builder.emit(op.permute_dims(x, [0, 2, 1])), 3, -1))
            total = builder.emit_output(builder.emit(op.add(parts[0], parts[2])))
        builder.emit_func_output(total)
    seen: list[list[int]] = []

    def look(call: relax.Call) -> None:
        if call.op.name == "relax.strided_slice":
            assert call.args[0].same_as(after.params[0])
            seen.append([int(one[0]) for one in call.args[1:4]])

    after = SplitsAsSlices()(builder.get())["main"]
    tvm_ffi.structural_walk(after.body, [(relax.Call, look)])
    assert seen == [[1, 0, 2], [1, 4, 6]]


def test_axes_of_a_symbolic_tensor_are_counted_from_the_front() -> None:
    """TVM 0.27 ends with "Check failed: axis < src_tensor_dim" where it lowers others."""
    rows = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType((rows, 8), "float16"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(op.strided_slice(x, [-1], [2], [6])))
    mod = builder.get()
    after = relax.transform.LegalizeOps()(SplitsAsSlices()(mod))
    assert after["main"].ret_ty.shape.values[1] == 4
    with pytest.raises(RuntimeError, match="axis < src_tensor_dim"):
        relax.transform.LegalizeOps()(mod)
