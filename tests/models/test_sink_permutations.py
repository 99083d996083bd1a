"""Permutations between channels-last convolutions meet, and are gone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models.running import array_of, fused
from tests.models.test_imported import by_cpu
from tvm_layout_ext.models.convolutions.sink_permutations import SinkPermutations

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
CHANNELS = 16


def of_images(body: Any, count: int = 1) -> tvm.IRModule:
    """A function of an image NCHW, vectors of channels, and weights that are constants."""
    builder = relax.BlockBuilder()
    shapes = [(2, CHANNELS, 6, 6), *[(1, CHANNELS, 1, 1)] * count]
    params = [relax.Var(f"p{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(body(builder.emit, *params))
        builder.emit_func_output(out)
    return builder.get()


def constant(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape))
    return relax.const(rng.standard_normal(shape, np.float32) / 4, "float32")


def convolved(emit: Any, x: Any, window: int = 3) -> Any:
    weight = constant(CHANNELS, CHANNELS, window, window)
    return emit(op.nn.conv2d(x, weight, padding=window // 2))


def normed(emit: Any, x: Any) -> Any:
    """A norm of the channels of an image NHWC."""
    ones = (relax.const(np.ones(CHANNELS, "float32")), relax.const(np.zeros(CHANNELS, "float32")))
    return emit(op.nn.layer_norm(x, *ones, axes=[-1]))


def convnext(emit: Any, x: Any, scale: Any) -> Any:
    """Two blocks: a convolution, a norm channels last, a scale and the shortcut channels first."""
    x = convolved(emit, x, 1)
    for _ in range(2):
        inner = normed(emit, emit(op.permute_dims(convolved(emit, x), LAST)))
        back = emit(op.permute_dims(emit(op.nn.gelu(inner)), FIRST))
        x = emit(op.add(emit(op.multiply(back, scale)), x))
    return convolved(emit, x, 1)


def rank_one(emit: Any, x: Any, scale: Any) -> Any:
    """A factor with fewer dims than the image, along its last one; a clip, which has numbers."""
    x = emit(op.permute_dims(convolved(emit, x), LAST))
    flat = emit(op.reshape(scale, (CHANNELS,)))
    x = emit(op.clip(emit(op.multiply(emit(op.permute_dims(x, FIRST)), constant(6))), -1, 1))
    x = emit(op.multiply(emit(op.permute_dims(x, LAST)), flat))
    return convolved(emit, emit(op.permute_dims(x, FIRST)))


def crossed(emit: Any, x: Any, _: Any) -> Any:
    """Two operands that are permuted otherwise: neither order is that of the sum."""
    both = emit(op.permute_dims(x, LAST)), emit(op.permute_dims(x, [0, 3, 2, 1]))
    return op.permute_dims(emit(op.add(*both)), FIRST)


def permutations(mod: tvm.IRModule) -> int:
    """Kernels that permute images."""
    return sum("transpose" in gv.name_hint for gv in mod.functions)


@pytest.mark.parametrize("body", [convnext, rank_one])
def test_only_the_ends_of_a_function_are_permuted(body: Any) -> None:
    mod = of_images(body)
    after = fused(mod)
    assert permutations(after) == 2
    rng = np.random.default_rng(0)
    arrays = [array_of(one.ty, rng) for one in mod["main"].params]
    assert error_of(by_cpu(after, arrays), by_cpu(mod, arrays)) <= 1e-5


def test_operands_of_other_orders_are_not_mixed_up() -> None:
    mod = of_images(crossed)
    arrays = [array_of(one.ty, np.random.default_rng(0)) for one in mod["main"].params]
    assert error_of(by_cpu(SinkPermutations()(mod), arrays), by_cpu(mod, arrays)) <= 1e-5


def test_a_function_stays_where_nothing_is_gained() -> None:
    # Both results of the one permutation are wanted; behind the ReLU there would be two.
    def body(emit: Any, x: Any, _: Any) -> Any:
        turned = emit(op.permute_dims(x, LAST))
        return relax.Tuple([turned, emit(op.nn.relu(turned))])

    mod = of_images(body)
    tvm.ir.assert_structural_equal(SinkPermutations()(mod), mod)
