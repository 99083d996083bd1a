"""What a convolution reads in 16 bits its shortcut reads so, too, where a user wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

import tvm_layout_ext as tlx
from benchmarks.relax_numbers import error_of
from tests.models.cpu import by_cpu, given_to
from tests.models.running import fused
from tests.programs.relaxed import emit, relax_module

SHAPE = (2, 64)
WEIGHT = relax.const(np.eye(64, dtype="float16") * np.float16(0.5))


def chain(between: Any) -> tvm.IRModule:
    """A product in 16 bits of a value of ``float32``, and what else reads that value."""

    def build(x: Any) -> Any:
        value = emit(op.nn.relu(op.exp(x)))
        product = op.matmul(op.astype(value, "float16"), WEIGHT)
        return between(value, op.astype(product, "float32"))

    return relax_module(build, SHAPE, dtype="float32")


def added(value: Any, product: Any) -> Any:
    return op.add(product, value)


def normed(value: Any, product: Any) -> Any:
    """A reader of whole rows: it would need a kernel that widens them."""
    return op.add(product, op.mean(value, axis=[1], keepdims=True))


def returned(value: Any, product: Any) -> Any:
    return relax.Tuple([op.add(product, value), value])


def stored(mod: tvm.IRModule) -> list[str]:
    """Types of what kernels store, but the last."""
    bindings = [one for block in fused(mod)["main"].body.blocks for one in block.bindings]
    return [str(one.value.ty.dtype) for one in bindings if hasattr(one.value.ty, "dtype")][:-1]


def require_a_rounding(after: tvm.IRModule, before: tvm.IRModule) -> None:
    """Fail unless they differ by half a unit of float16's last place of the largest value."""
    arrays = given_to(before)
    assert 0 < error_of(by_cpu(after, arrays), by_cpu(before, arrays)) <= 2.0**-11


def test_a_shortcut_is_stored_once_in_16_bits() -> None:
    mod = chain(added)
    assert sorted(stored(mod)) == ["float16", "float32"]
    assert stored(tlx.NarrowShortcuts()(mod)) == ["float16"]
    require_a_rounding(tlx.NarrowShortcuts()(mod), mod)


def test_what_is_moved_before_it_is_rounded_is_rounded_first() -> None:
    def build(x: Any) -> Any:
        value = op.exp(x)
        flat = op.reshape(op.permute_dims(value, [1, 0, 2]), (6, 64))
        product = op.matmul(op.astype(flat, "float16"), WEIGHT)
        wide = op.reshape(op.astype(product, "float32"), (3, 2, 64))
        return op.add(op.permute_dims(wide, [1, 0, 2]), value)

    mod = relax_module(build, (2, 3, 64), dtype="float32")
    after = tlx.NarrowShortcuts()(mod)
    types = [one.value.ty.dtype for one in after["main"].body.blocks[0].bindings]
    assert list(map(str, types[:5])) == ["float32", *["float16"] * 4]
    assert "float32" in stored(mod)
    assert "float32" not in stored(after)
    require_a_rounding(after, mod)


@pytest.mark.parametrize("between", [normed, returned])
def test_a_value_that_others_read_whole_keeps_its_bits(between: Any) -> None:
    mod = chain(between)
    tvm.ir.assert_structural_equal(tlx.NarrowShortcuts()(mod), mod)
