"""Attention as PyTorch's decompositions leave it gives the numbers that they give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.target import Target

from benchmarks.relax_numbers import error_of, outputs
from tests.models.running import check, fused, scheduled

BATCH, HEADS, HEAD = 2, 2, 64


def decomposed(
    rows: int, keys: int, mask: Any, dtype: str = "float16", wide: bool = False
) -> tvm.IRModule:
    """Products and a safe softmax, as ``run_decompositions`` writes them; mask adds to scores.

    Products are ``wide`` as ``ToMixedPrecision`` leaves them by default.
    """
    builder = relax.BlockBuilder()
    q, k, v = (
        relax.Var(name, relax.TensorType((BATCH, HEADS, length, HEAD), dtype))
        for name, length in (("q", rows), ("k", keys), ("v", keys))
    )
    flat = BATCH * HEADS
    root = op.astype(relax.const(HEAD**-0.25, "float32"), dtype)

    def emit(value: Any) -> Any:
        return builder.emit(value)

    def product(*operands: Any) -> Any:
        if not wide:
            return emit(op.matmul(*operands))
        return emit(op.astype(emit(op.matmul(*operands, out_dtype="float32")), dtype))

    with builder.function("main", [q, k, v]):
        with builder.dataflow():
            scaled = emit(op.multiply(q, emit(root)))
            turned = emit(op.permute_dims(k, [0, 1, 3, 2]))
            turned = emit(op.multiply(turned, emit(root)))
            left = emit(op.reshape(scaled, (flat, rows, HEAD)))
            right = emit(op.reshape(turned, (flat, HEAD, keys)))
            scores = emit(op.reshape(product(left, right), (BATCH, HEADS, rows, keys)))
            scores = emit(op.astype(scores, "float32"))
            if mask is not None:
                scores = emit(op.add(scores, emit(mask(emit, rows, keys))))
            weights = emit(op.nn.softmax(scores, -1))
            seen = emit(
                op.logical_not(emit(op.equal(scores, relax.const(float("-inf"), "float32"))))
            )
            seen = emit(op.max(emit(op.astype(seen, "int8")), -1, keepdims=True))
            empty = emit(op.logical_not(emit(op.astype(seen, "bool"))))
            zeros = emit(op.full_like(weights, relax.const(0.0, "float32")))
            weights = emit(op.where(empty, zeros, weights))
            weights = emit(op.astype(emit(op.reshape(weights, (flat, rows, keys))), dtype))
            values = emit(op.reshape(emit(op.broadcast_to(v, v.ty.shape)), (flat, keys, HEAD)))
            mean = product(weights, values)
            out = builder.emit_output(op.reshape(mean, (BATCH, HEADS, rows, HEAD)))
        builder.emit_func_output(out)
    return builder.get()


def causal(offset: int) -> Any:
    """A mask of keys behind a row's place."""

    def mask(emit: Any, rows: int, keys: int) -> Any:
        places = emit(op.expand_dims(emit(op.arange(0, keys, 1, "int64")), -2))
        starts = emit(op.expand_dims(emit(op.arange(0, rows, 1, "int64")), -1))
        seen = emit(op.less_equal(emit(op.subtract(places, starts)), relax.const(offset, "int64")))
        inside, outside = (relax.const(one, "float32") for one in (0.0, float("-inf")))
        return op.where(seen, inside, outside)

    return mask


@pytest.mark.parametrize(
    ("rows", "keys", "mask", "wide"),
    [
        (40, 40, None, True),
        (40, 40, causal(0), False),
        (24, 40, causal(16), True),
        (24, 40, causal(0), False),
    ],
)
def test_products_and_a_safe_softmax_are_attention(
    rows: int, keys: int, mask: Any, wide: bool
) -> None:
    mod = decomposed(rows, keys, mask, wide=wide)
    lowered = fused(mod)
    rng = np.random.default_rng(0)
    shapes = [(BATCH, HEADS, length, HEAD) for length in (rows, keys, keys)]
    arrays = [rng.standard_normal(shape).astype("float16") for shape in shapes]
    cpu = Target("llvm")
    want = outputs(mod, cpu, "default", arrays)
    assert error_of(outputs(lowered, cpu, "default", arrays), want) <= 1e-2
    functions = scheduled(lowered)
    assert "attention" in [one.choice.rule for one in functions]
    for one in functions:
        check(one)


@pytest.mark.parametrize(
    ("mask", "dtype"), [(causal(3), "float16"), (causal(-1), "float16"), (None, "float32")]
)
def test_other_masks_and_types_stay_products(mask: Any, dtype: str) -> None:
    functions = fused(decomposed(40, 40, mask, dtype)).functions
    assert not any(gv.name_hint.startswith("attention") for gv in functions)
