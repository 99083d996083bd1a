"""Batch norms: of inference they end a convolution's kernel, of training they are a batch's own."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.cpu import by_cpu
from tests.models.running import array_of, check, fused, scheduled
from tvm_layout_ext.models.batch_norm import BatchNormsAsScales


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


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_norm_of_16_bits_is_rounded_once(dtype: str) -> None:
    shapes = {"x": (2, 8, 3, 5), **dict.fromkeys("gbmv", (8,))}
    params = [relax.Var(name, relax.TensorType(one, dtype)) for name, one in shapes.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            normed = builder.emit(op.nn.batch_norm(*params, axis=1, training=False))
            out = builder.emit_output(relax.TupleGetItem(normed, 0))
        builder.emit_func_output(out)
    rng = np.random.default_rng(0)
    arrays = [array_of(one.ty, rng) for one in params]
    (got,) = by_cpu(BatchNormsAsScales()(builder.get()), arrays)
    x, *channels = (one.astype("float64") for one in arrays)
    scale, shift, mean, var = (one[:, None, None] for one in channels)
    want = (x - mean) / np.sqrt(var + 1e-5) * scale + shift
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    error = np.abs(got.astype("float64") - want)
    assert (error <= 1.01 * unit * np.abs(want) + 1e-6).all(), error.max()


def _values(name: str) -> np.ndarray:
    return np.linspace(0.5, 2, 16).astype("float16") * (1 if name in "gv" else -1)
