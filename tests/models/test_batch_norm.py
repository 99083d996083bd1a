"""Batch norms: of inference they end a convolution's kernel, of training they are a batch's own."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.running import check, fused, scheduled


def convolved(training: bool = False, axis: int = 1, **attrs: bool) -> tvm.IRModule:
    """A convolution, its batch norm, and a ReLU; ``attrs`` are those of the norm."""
    shapes = {"x": (1, 16, 6, 6), "w": (16, 16, 3, 3), **dict.fromkeys("gbmv", (16,))}
    params = [relax.Var(name, relax.TensorType(one, "float16")) for name, one in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(*params[:2], padding=1))
            normed = op.nn.batch_norm(y, *params[2:], axis=axis, training=training, **attrs)
            y = builder.emit(relax.TupleGetItem(builder.emit(normed), 0))
            out = builder.emit_output(op.nn.relu(y))
        builder.emit_func_output(out)
    return builder.get()


def test_a_norm_of_inference_and_its_relu_end_the_kernel_of_the_convolution() -> None:
    (one,) = (one for one in scheduled(convolved()) if "conv2d" in one.name)
    parts = {part.rstrip("0123456789") for part in one.name.split("_")}
    assert {"subtract", "multiply", "add", "relu"} <= parts
    check(one)


def test_one_value_a_channel_is_folded_of_constants() -> None:
    given = {name: tvm.runtime.tensor(_values(name)) for name in "gbmv"}
    mod = fused(relax.transform.BindParams("main", given)(convolved()))
    assert not [gv for gv in mod.get_global_vars() if "sqrt" in gv.name_hint]


def test_without_scale_and_center_they_are_left_out() -> None:
    names = " ".join(one.name for one in scheduled(convolved(scale=False, center=False)))
    assert "sqrt" in names
    assert "add_relu" not in names


def test_a_norm_of_training_reads_its_batch() -> None:
    names = [one.name for one in scheduled(convolved(training=True))]
    assert any("batch_norm" in name for name in names)


def _values(name: str) -> np.ndarray:
    return np.linspace(0.5, 2, 16).astype("float16") * (1 if name in "gv" else -1)
