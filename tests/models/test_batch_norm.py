"""Batch norms: of inference they end a convolution's kernel, of training they are a batch's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.cpu import by_cpu, given_to
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.batch_norm import BatchNormsAsScales


def convolved(training: bool = False, axis: int = 1, **attrs: bool) -> tvm.IRModule:
    """A convolution, its batch norm, and a ReLU; ``attrs`` are those of the norm."""

    def build(x: Any, w: Any, *channels: Any) -> Any:
        y = op.nn.conv2d(x, w, padding=1)
        return op.nn.relu(op.nn.batch_norm(y, *channels, axis=axis, training=training, **attrs)[0])

    channels = dict.fromkeys("gbmv", (16,))
    return relax_module(build, x=(1, 16, 6, 6), w=(16, 16, 3, 3), **channels)


def test_a_norm_of_inference_and_its_relu_end_the_kernel_of_the_convolution() -> None:
    one = only(convolved(), "conv2d")
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
    def build(*given: Any) -> Any:
        return op.nn.batch_norm(*given, axis=1, training=False)[0]

    mod = relax_module(build, (2, 8, 3, 5), *[(8,)] * 4, dtype=dtype)
    arrays = given_to(mod)
    (got,) = by_cpu(BatchNormsAsScales()(mod), arrays)
    x, *channels = (one.astype("float64") for one in arrays)
    scale, shift, mean, var = (one[:, None, None] for one in channels)
    want = (x - mean) / np.sqrt(var + 1e-5) * scale + shift
    unit = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    error = np.abs(got.astype("float64") - want)
    assert (error <= 1.01 * unit * np.abs(want) + 1e-6).all(), error.max()


def _values(name: str) -> np.ndarray:
    return np.linspace(0.5, 2, 16).astype("float16") * (1 if name in "gv" else -1)
