"""Permutations meet, and are gone: between channels-last convolutions, and around attention."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import TARGET, fused
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.moves.regroup import regroup
from tvm_layout_ext.models.moves.sink_permutations import SinkPermutations
from tvm_layout_ext.models.pipeline import lowered_passes

LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
CHANNELS = 16


def of_images(body: Any) -> tvm.IRModule:
    """A function of an image NCHW and a vector of channels; weights are constants."""
    return relax_module(body, (2, CHANNELS, 6, 6), (1, CHANNELS, 1, 1), dtype="float32")


def constant(*shape: int) -> Any:
    rng = np.random.default_rng(len(shape))
    return relax.const(rng.standard_normal(shape, np.float32) / 4, "float32")


def convolved(x: Any, window: int = 3) -> Any:
    return op.nn.conv2d(x, constant(CHANNELS, CHANNELS, window, window), padding=window // 2)


def convnext(x: Any, scale: Any) -> Any:
    """Two blocks: a convolution, a norm channels last, a scale and the shortcut channels first."""
    ones = (relax.const(np.ones(CHANNELS, "float32")), relax.const(np.zeros(CHANNELS, "float32")))
    x = convolved(x, 1)
    for _ in range(2):
        inner = op.nn.layer_norm(op.permute_dims(convolved(x), LAST), *ones, axes=[-1])
        x = op.add(op.multiply(op.permute_dims(op.nn.gelu(inner), FIRST), scale), x)
    return convolved(x, 1)


def rank_one(x: Any, scale: Any) -> Any:
    """A factor with fewer dims than the image, along its last one; a clip, which has numbers."""
    x = op.permute_dims(op.permute_dims(convolved(x), LAST), FIRST)
    x = op.permute_dims(op.clip(op.multiply(x, constant(6)), -1, 1), LAST)
    x = op.multiply(x, op.reshape(scale, (CHANNELS,)))
    return convolved(op.permute_dims(x, FIRST))


def crossed(x: Any, _: Any) -> Any:
    """Two operands that are permuted otherwise: neither order is that of the sum."""
    both = op.permute_dims(x, LAST), op.permute_dims(x, [0, 3, 2, 1])
    return op.permute_dims(op.add(*both), FIRST)


def permutations(mod: tvm.IRModule) -> int:
    """Kernels that permute images."""
    return sum("transpose" in gv.name_hint for gv in mod.functions)


@pytest.mark.parametrize("body", [convnext, rank_one])
def test_only_the_ends_of_a_function_are_permuted(body: Any) -> None:
    mod = of_images(body)
    after = fused(mod)
    assert permutations(after) == 2
    require_same(after, mod, 1e-5)


def test_operands_of_other_orders_are_not_mixed_up() -> None:
    mod = of_images(crossed)
    require_same(SinkPermutations()(mod), mod, 1e-5)


@pytest.mark.parametrize("pool", [op.nn.max_pool3d, op.nn.avg_pool3d])
def test_volumes_are_pooled_with_their_channels_last(pool: Any) -> None:
    how = ([2, 3, 2], [2, 1, 2], [0, 1, 1, 1, 0, 1], [1, 1, 1], True)

    def build(x: Any) -> Any:
        x = pool(op.permute_dims(op.nn.relu(x), [0, 4, 1, 2, 3]), *how)
        return op.permute_dims(op.nn.relu(x), [0, 2, 3, 4, 1])

    mod = relax_module(build, (2, 6, 5, 7, 8), dtype="float32")
    found = SinkPermutations()(mod)
    assert "permute_dims" not in str(found)
    require_same(found, mod, 1e-6)


@pytest.mark.parametrize("pool", [op.nn.max_pool2d, op.nn.avg_pool2d])
def test_images_are_pooled_with_their_channels_last(pool: Any) -> None:
    """As a transformer pools its queries, without a convolution nearby."""
    how = ([2, 3], [2, 1], [0, 1, 1, 0], [1, 1], True)

    def build(x: Any) -> Any:
        return op.permute_dims(pool(op.permute_dims(x, [0, 3, 1, 2]), *how), [0, 2, 3, 1])

    mod = relax_module(build, (2, 6, 5, 8), dtype="float32")
    found = SinkPermutations()(mod)
    assert "permute_dims" not in str(found)
    require_same(found, mod, 1e-6)


def test_a_pool_along_other_dims_stays() -> None:
    def build(x: Any) -> Any:
        x = op.nn.max_pool3d(op.permute_dims(x, [0, 4, 2, 1, 3]), [2, 2, 2])
        return op.permute_dims(x, [0, 3, 2, 4, 1])

    mod = relax_module(build, (2, 6, 5, 7, 8), dtype="float32")
    assert str(SinkPermutations()(mod)).count("permute_dims") == 2


def test_a_function_stays_where_nothing_is_gained() -> None:
    # Both results of the one permutation are wanted; behind the ReLU there would be two.
    def body(x: Any, _: Any) -> Any:
        turned = op.permute_dims(x, LAST)
        return relax.Tuple([turned, op.nn.relu(turned)])

    mod = of_images(body)
    tvm.ir.assert_structural_equal(SinkPermutations()(mod), mod)


def heads(x: Any) -> Any:
    """What PyTorch's ``MultiheadAttention`` writes of a batch first, but for scores."""
    batch, rows, dims = x.ty.shape.values
    turned = op.permute_dims(x, [1, 0, 2])
    wide = op.matmul(turned, op.broadcast_to(constant(32, 96), (rows, dims, 96)))
    parts = op.expand_dims(op.reshape(wide, (rows, batch, 3, dims)), 0)
    parts = op.squeeze(op.permute_dims(parts, [3, 1, 2, 0, 4]), [-2])

    def head(at: int) -> Any:
        one = op.take(parts, relax.const(at, "int64"), 0, "fast")
        one = op.permute_dims(op.reshape(one, (rows, batch * 4, 8)), [1, 0, 2])
        return op.reshape(one, (batch, 4, rows, 8))

    mixed = op.add(op.multiply(head(0), head(1)), head(2))
    back = op.permute_dims(mixed, [2, 0, 1, 3])
    flat = op.matmul(op.reshape(back, (batch * rows, dims)), constant(32, 32))
    whole = op.permute_dims(op.reshape(flat, (rows, batch, dims)), [1, 0, 2])
    return op.add(x, whole)


@pytest.mark.parametrize("batch", [3, "n"])
def test_nothing_is_permuted_around_heads(batch: Any) -> None:
    mod = relax_module(heads, (batch, 6, 32), dtype="float32")
    passes = lowered_passes(TARGET)
    ends = [one.info.name for one in passes].index("tvm_layout_ext.SinkPermutations")
    with TARGET:
        after = tvm.transform.Sequential(passes[: ends + 1])(mod)
    assert "permute_dims" not in after.script()
    require_same(after, mod, 1e-5)


@given(st.data())
def test_a_reshape_of_a_permutation(data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    order = data.draw(st.permutations(range(len(dims))))
    turned = np.arange(np.prod(dims)).reshape(dims).transpose(order)
    shape = list(turned.shape)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(shape) - 1))
        if data.draw(st.booleans()) and at + 1 < len(shape):
            shape[at : at + 2] = [shape[at] * shape[at + 1]]
        else:
            parts = [n for n in range(1, shape[at] + 1) if shape[at] % n == 0]
            part = data.draw(st.sampled_from(parts))
            shape[at : at + 1] = [part, shape[at] // part]
    literal = [[tvm.tirx.const(n, "int64") for n in one] for one in (dims, shape)]
    found = regroup(literal[0], order, literal[1])
    splits_only = shape == list(turned.shape)
    assert found is not None or not splits_only
    if found is not None:
        first = np.arange(np.prod(dims)).reshape([int(n) for n in found.shape])
        assert np.array_equal(first.transpose(found.order), turned.reshape(shape))


def test_dims_of_two_variables_are_not_taken_for_each_other() -> None:
    n, m = (tvm.tirx.Var(name, "int64") for name in "nm")
    assert regroup([m, n], [1, 0], [m, n]) is None
    found = regroup([m, n], [1, 0], [n, m])
    assert found is not None
    assert found.order == [1, 0]


def test_products_by_one_value_share_its_permutation() -> None:
    """As Q, K and V of an image do, in which channels come before places."""

    def body(x: Any, _: Any) -> Any:
        flat = op.reshape(x, (2, CHANNELS, 36))
        parts = []
        for at in range(3):
            turned = emit(op.permute_dims(flat, [0, 2, 1]))
            weight = relax.const(np.full((CHANNELS, 8), at, "float32"))
            part = op.matmul(op.reshape(turned, (72, CHANNELS)), weight)
            parts.append(op.reshape(part, (2, 36, 1, 8)))
        return relax.Tuple(parts)

    after = fused(of_images(body))["main"].script()
    assert after.count("transpose") == 1


@pytest.mark.parametrize("heads", [1, 2])
def test_keys_of_one_head_are_read_where_they_are(heads: int) -> None:
    """Those of several are stored by heads for the product."""

    def body(x: Any, _: Any) -> Any:
        places = op.reshape(x, (2, CHANNELS, heads, 36 // heads))
        keys = op.permute_dims(op.permute_dims(places, [0, 2, 1, 3]), [0, 1, 3, 2])
        return op.matmul(op.permute_dims(places, [0, 2, 1, 3]), keys)

    mod = of_images(body)
    after = fused(mod)
    assert ("transpose" in after["main"].script()) == (heads > 1)
    require_same(after, mod, 1e-5)
