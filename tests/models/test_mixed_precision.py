"""Modules of float32 come to 16 bits, also those at which TVM's pass fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.relax import op

import tvm_layout_ext as tlx
from benchmarks.relax_numbers import error_of
from tests.models.cpu import by_cpu
from tests.models.running import array_of
from tvm_layout_ext.models.imported.mixed_precision import _Masks
from tvm_layout_ext.models.relax_values import array_of as known_array
from tvm_layout_ext.models.relax_values import dims_of, name_of, rewritten, uses_of

SIDE = 16
#: Emits what follows a product.
Behind = Callable[[relax.BlockBuilder, Any], Any]


def hard_swish(builder: relax.BlockBuilder, y: Any) -> Any:
    shifted = builder.emit(op.add(y, relax.const(3.0)))
    clipped = builder.emit(op.clip(shifted, 0, 6))
    return op.multiply(y, builder.emit(op.divide(clipped, relax.const(6.0))))


def masked(builder: relax.BlockBuilder, y: Any) -> Any:
    """As Swin's: numbers of windows are written into slices of a constant."""
    mask = builder.emit(op.full((SIDE, SIDE), relax.const(0.0), "float32"))
    for number, (begin, end) in enumerate([(0, 6), (6, 13), (13, SIDE)]):
        shape = (end - begin, SIDE)
        part = builder.emit(op.broadcast_to(relax.const(np.float32(number)), shape))
        mask = builder.emit(op.slice_scatter(mask, part, begin, end, 1, axis=0))
    return op.add(y, mask)


def product(behind: Behind) -> tvm.IRModule:
    builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((SIDE, SIDE), "float32"))
    w = relax.const(rng.standard_normal((SIDE, SIDE)).astype("float32") / 4)
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit(behind(builder, builder.emit(op.matmul(x, w))))
            out = builder.emit_output(op.matmul(out, w))
        builder.emit_func_output(out)
    return builder.get()


def called(mod: tvm.IRModule, name: str) -> list[Any]:
    """Calls of an operator, in order."""
    blocks = mod["main"].body.blocks
    values = [one.value for block in blocks for one in block.bindings]
    return [one for one in values if name_of(one) == name]


@pytest.mark.parametrize("behind", [hard_swish, masked])
def test_what_tvm_refuses_is_taken(behind: Behind) -> None:
    mod = product(behind)
    with pytest.raises(tvm.error.InternalError, match="Expected TensorType"):
        relax.transform.ToMixedPrecision()(mod)
    mixed = tlx.MixedPrecision()(mod)
    products = called(mixed, "matmul")
    assert [str(a.ty.dtype) for one in products for a in one.args] == ["float16"] * 4
    arrays = [array_of(mod["main"].params[0].ty, np.random.default_rng(1))]
    assert 0 < error_of(by_cpu(mixed, arrays), by_cpu(mod, arrays)) <= 2e-3


def test_what_slices_are_put_into_is_worked_out_where_it_is_constant() -> None:
    assert "slice_scatter" not in str(tlx.MixedPrecision()(product(masked)))


def test_a_module_that_tvm_refuses_otherwise_is_refused_in_a_sentence() -> None:
    def scattered(_: relax.BlockBuilder, y: Any) -> Any:
        return op.slice_scatter(y, relax.const(np.zeros((4, SIDE), "float32")), 0, 4, 1, axis=0)

    with pytest.raises(tlx.ScheduleError, match="ToMixedPrecision refuses the module: "):
        tlx.MixedPrecision()(product(scattered))


@pytest.mark.parametrize("sums", [None, "float32"])
def test_a_column_by_a_row_stays_in_float32(sums: str | None) -> None:
    """Angles of rotary embeddings: 511 by a frequency has no room in 16 bits, nor has that one."""

    def turned(builder: relax.BlockBuilder, y: Any) -> Any:
        column = builder.emit(op.astype(builder.emit(op.arange(500, 500 + SIDE, 1)), "float32"))
        column = builder.emit(op.reshape(column, (SIDE, 1)))
        frequencies = relax.const(0.1 ** np.linspace(0, 1, SIDE, dtype="float32"))
        row = builder.emit(op.expand_dims(frequencies, 0))
        row = builder.emit(op.broadcast_to(row, (1, SIDE)))
        angles = builder.emit(op.matmul(column, row, out_dtype=sums))
        return op.add(y, builder.emit(op.cos(angles)))

    mod = product(turned)
    mixed = tlx.MixedPrecision()(mod)
    angles = called(mixed, "cos")
    assert [str(one.ty.dtype) for one in angles] == ["float32"]
    x = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype("float32")
    assert error_of(by_cpu(mixed, [x]), by_cpu(mod, [x])) <= 2e-3


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_constants_are_worked_out_as_tvm_does(dtype: str) -> None:
    """Quotients of whole numbers are cut off, and so is what fills them."""

    def written(builder: relax.BlockBuilder, y: Any) -> Any:
        filled = builder.emit(op.full((SIDE, SIDE), relax.const(7.7), dtype))
        halves = builder.emit(op.divide(filled, relax.const(-2, dtype)))
        mask = builder.emit(op.astype(halves, "float32"))
        part = builder.emit(op.full((2, SIDE), relax.const(5.0), "float32"))
        return op.add(y, builder.emit(op.slice_scatter(mask, part, 1, 3, 1, axis=0)))

    mod = product(written)
    x = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype("float32")
    assert error_of(by_cpu(rewritten(mod, _Masks), [x]), by_cpu(mod, [x])) < 1e-5


@pytest.mark.parametrize("kind", ["slice_scatter", "strided_slice", "arange", "fractions"])
def test_places_and_ranges_that_are_not_whole_numbers_are_not_known(kind: str) -> None:
    at = tirx.Var("s", "int64")
    whole, part = (relax.const(np.zeros((rows, SIDE), "float32")) for rows in (SIDE, 4))
    value = {
        "slice_scatter": lambda: op.slice_scatter(whole, part, at, at + 4, 1, axis=0),
        "strided_slice": lambda: op.strided_slice(whole, [0], [at], [at + 4], assume_inbound=True),
        "arange": lambda: op.arange(at, at + 4, 1, "int64"),
        "fractions": lambda: op.arange(0.5, 4.5, 1.0, "float32"),
    }[kind]()
    value = relax.BlockBuilder().normalize(value)
    assert dims_of(value) is not None
    assert known_array(value, lambda _: None) is None


def test_what_several_products_read_is_rounded_once() -> None:
    def again(builder: relax.BlockBuilder, y: Any) -> Any:
        wide, w = builder.emit(op.rsqrt(y)), relax.const(np.eye(SIDE, dtype="float32"))
        same = [builder.emit(op.reshape(wide, (SIDE, SIDE))) for _ in range(2)]
        ends = [builder.emit(op.matmul(one, w)) for one in same]
        return op.add(ends[0], builder.emit(op.sqrt(ends[1])))

    mixed = tlx.MixedPrecision()(product(again))
    lines = mixed["main"].script().splitlines()
    read = [one.partition("R.astype(")[2] for one in lines if "R.astype(" in one]
    assert len(read) == len(set(read)) > 1
    assert sum("R.reshape(" in one for one in lines) == 1


def test_a_shortcut_that_several_products_read_is_in_16_bits() -> None:
    """What TVM merges keeps a second name, which is no reader of the shortcut."""

    def again(builder: relax.BlockBuilder, y: Any) -> Any:
        wide, w = builder.emit(op.nn.softmax(y)), relax.const(np.eye(SIDE, dtype="float32"))
        same = [builder.emit(op.reshape(wide, (1, SIDE, SIDE))) for _ in range(2)]
        ends = [builder.emit(op.matmul(one, w)) for one in same]
        both = builder.emit(op.add(ends[0], builder.emit(op.sqrt(ends[1]))))
        return op.add(wide, builder.emit(op.reshape(both, (SIDE, SIDE))))

    mod = product(again)
    mixed = tlx.MixedPrecision()(mod)
    (wide,) = called(mixed, "nn.softmax")
    bindings = mixed["main"].body.blocks[0].bindings
    (var,) = (one.var for one in bindings if one.value.same_as(wide))
    readers = [name_of(one.value) for one in bindings if var in uses_of(one.value)]
    assert readers == ["astype"]
    arrays = [array_of(mod["main"].params[0].ty, np.random.default_rng(1))]
    assert 0 < error_of(by_cpu(mixed, arrays), by_cpu(mod, arrays)) <= 2e-3


def test_powers_that_are_added_up_are_of_float32() -> None:
    """As autocast's: the square of 300 is no number of float16. Norms of Qwen3's heads are such."""

    def normed(builder: relax.BlockBuilder, y: Any) -> Any:
        large = builder.emit(op.multiply(y, relax.const(300.0)))
        squares = builder.emit(op.power(large, relax.const(2.0)))
        scale = builder.emit(op.rsqrt(builder.emit(op.mean(squares, -1, keepdims=True))))
        return op.multiply(large, scale)

    mod = product(normed)
    mixed = tlx.MixedPrecision()(mod)
    assert [str(one.ty.dtype) for one in called(mixed, "power")] == ["float32"]
    x = np.random.default_rng(1).standard_normal((SIDE, SIDE)).astype("float32")
    assert 0 < error_of(by_cpu(mixed, [x]), by_cpu(mod, [x])) <= 2e-3
