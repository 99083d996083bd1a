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
from tests.models.cpu import by_cpu
from tests.models.running import array_of, fused

SHAPE = (2, 64)


def chain(between: Any) -> tvm.IRModule:
    """A product in 16 bits of a value of ``float32``, and what else reads that value."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))
    w = relax.const(np.eye(SHAPE[1], dtype="float16") * np.float16(0.5))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = builder.emit(op.nn.relu(builder.emit(op.exp(x))))
            narrow = builder.emit(op.astype(value, "float16"))
            product = builder.emit(op.astype(builder.emit(op.matmul(narrow, w)), "float32"))
            out = builder.emit_output(between(builder.emit, value, product))
        builder.emit_func_output(out)
    return builder.get()


def added(_: Any, value: Any, product: Any) -> Any:
    return op.add(product, value)


def normed(emit: Any, value: Any, product: Any) -> Any:
    """A reader of whole rows: it would need a kernel that widens them."""
    mean = emit(op.mean(value, axis=[1], keepdims=True))
    return op.add(product, mean)


def returned(_: Any, value: Any, product: Any) -> Any:
    return relax.Tuple([op.add(product, value), value])


def stored(mod: tvm.IRModule) -> list[str]:
    """Types of what kernels store, but the last."""
    bindings = [one for block in fused(mod)["main"].body.blocks for one in block.bindings]
    return [str(one.value.ty.dtype) for one in bindings if hasattr(one.value.ty, "dtype")][:-1]


def test_a_shortcut_is_stored_once_in_16_bits() -> None:
    mod = chain(added)
    assert sorted(stored(mod)) == ["float16", "float32"]
    assert stored(tlx.NarrowShortcuts()(mod)) == ["float16"]
    arrays = [array_of(mod["main"].params[0].ty, np.random.default_rng(0))]
    exact, found = (by_cpu(one, arrays) for one in (mod, tlx.NarrowShortcuts()(mod)))
    # Half a unit of float16's last place of values up to the largest.
    assert 0 < error_of(found, exact) <= 2.0**-11


def test_what_is_moved_before_it_is_rounded_is_rounded_first() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3, 64), "float32"))
    w = relax.const(np.eye(64, dtype="float16") * np.float16(0.5))
    emit = builder.emit
    with builder.function("main", [x]):
        with builder.dataflow():
            value = emit(op.exp(x))
            flat = emit(op.reshape(emit(op.permute_dims(value, [1, 0, 2])), (6, 64)))
            product = emit(op.matmul(emit(op.astype(flat, "float16")), w))
            wide = emit(op.reshape(emit(op.astype(product, "float32")), (3, 2, 64)))
            back = emit(op.permute_dims(wide, [1, 0, 2]))
            out = builder.emit_output(op.add(back, value))
        builder.emit_func_output(out)
    mod = builder.get()
    after = tlx.NarrowShortcuts()(mod)
    types = [one.value.ty.dtype for one in after["main"].body.blocks[0].bindings]
    assert list(map(str, types[:5])) == ["float32", *["float16"] * 4]
    assert "float32" in stored(mod)
    assert "float32" not in stored(after)
    arrays = [array_of(x.ty, np.random.default_rng(0))]
    exact, found = (by_cpu(one, arrays) for one in (mod, after))
    assert 0 < error_of(found, exact) <= 2.0**-11


@pytest.mark.parametrize("between", [normed, returned])
def test_a_value_that_others_read_whole_keeps_its_bits(between: Any) -> None:
    mod = chain(between)
    tvm.ir.assert_structural_equal(tlx.NarrowShortcuts()(mod), mod)
