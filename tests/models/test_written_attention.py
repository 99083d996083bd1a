"""Attention as models of transformers write it themselves is one kernel with their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models import running
from tests.models.cpu import by_cpu
from tests.models.running import check, fused, scheduled
from tests.programs.warpgroups import TYPES
from tests.sampling import beside

BATCH, HEADS, KEPT, ROWS, HEAD = 2, 4, 2, 72, 64


@pytest.fixture(autouse=True)
def _few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", BATCH)


def written(kind: str, dtype: str, reach: int = ROWS) -> tvm.IRModule:
    """Two products; scores are capped, beside a sink, added to, or multiplied by head.

    A row sees ``reach`` keys up to its own, and the lowest number of the type hides the others.
    """
    builder = relax.BlockBuilder()
    emit = builder.emit
    shapes = {"q": (BATCH, HEADS, ROWS, HEAD)} | dict.fromkeys("kv", (BATCH, KEPT, ROWS, HEAD))
    params = [relax.Var(name, relax.TensorType(one, dtype)) for name, one in shapes.items()]
    by_head = relax.Var("by_head", relax.TensorType((HEADS,), dtype))
    flat = BATCH * HEADS

    def number(value: float) -> Any:
        return emit(op.astype(relax.const(value, "float32"), dtype))

    def repeated(one: Any) -> Any:
        wide = emit(op.broadcast_to(emit(op.expand_dims(one, 2)), (BATCH, KEPT, 2, ROWS, HEAD)))
        return emit(op.reshape(wide, (BATCH, HEADS, ROWS, HEAD)))

    def product(left: Any, right: Any) -> Any:
        return emit(op.astype(emit(op.matmul(left, right, out_dtype="float32")), dtype))

    def softmax(scores: Any) -> Any:
        if kind != "sink":
            wide = emit(op.astype(scores, "float32"))
            return emit(op.astype(emit(op.nn.softmax(wide)), dtype))
        sink = emit(op.broadcast_to(emit(op.reshape(by_head, (1, HEADS, 1, 1))), WITH_SINK))
        both = emit(op.concat([scores, sink], -1))
        less = emit(op.subtract(both, emit(op.max(both, -1, keepdims=True))))
        return emit(op.strided_slice(emit(op.nn.softmax(less)), [3], [0], [-1]))

    with builder.function("main", [*params, by_head]):
        with builder.dataflow():
            q, k, v = params[0], *map(repeated, params[1:])
            left = emit(op.reshape(q, (flat, ROWS, HEAD)))
            right = emit(op.reshape(emit(op.permute_dims(k, (0, 1, 3, 2))), (flat, HEAD, ROWS)))
            if kind == "slopes":  # As baddbmm is taken apart.
                left, right = (emit(op.astype(one, "float32")) for one in (left, right))
                places = emit(op.astype(emit(op.arange(0, ROWS, 1, "int64")), dtype))
                slopes = emit(op.multiply(emit(op.reshape(by_head, (HEADS, 1, 1))), places))
                slopes = emit(op.broadcast_to(slopes, (BATCH, HEADS, 1, ROWS)))
                slopes = emit(op.astype(emit(op.reshape(slopes, (flat, 1, ROWS))), "float32"))
                scores = emit(op.matmul(left, right, out_dtype="float32"))
                scores = emit(op.multiply(scores, relax.const(0.125, "float32")))
                scores = emit(op.astype(emit(op.add(slopes, scores)), dtype))
                scores = emit(op.reshape(scores, (BATCH, HEADS, ROWS, ROWS)))
            else:
                scores = emit(op.reshape(product(left, right), (BATCH, HEADS, ROWS, ROWS)))
                scores = emit(op.multiply(scores, number(0.125)))
            if kind == "cap":
                scores = emit(op.tanh(emit(op.divide(scores, number(2.0)))))
                scores = emit(op.multiply(scores, number(2.0)))
            if kind == "factors":
                scores = emit(op.multiply(scores, emit(op.reshape(by_head, (1, HEADS, 1, 1)))))
            scores = emit(op.add(scores, emit(_mask(emit, reach, dtype))))
            if kind == "lowest":
                scores = emit(op.maximum(scores, number(float(np.finfo("float16").min))))
            weights = emit(op.reshape(softmax(scores), (flat, ROWS, ROWS)))
            mean = product(weights, emit(op.reshape(v, (flat, ROWS, HEAD))))
            out = builder.emit_output(op.reshape(mean, (BATCH, HEADS, ROWS, HEAD)))
        builder.emit_func_output(out)
    return builder.get()


WITH_SINK = (BATCH, HEADS, ROWS, 1)


def _mask(emit: Any, reach: int, dtype: str) -> Any:
    keys = emit(op.reshape(emit(op.arange(0, ROWS, 1, "int64")), (1, 1, 1, ROWS)))
    rows = emit(op.reshape(keys, (1, 1, ROWS, 1)))
    ahead = emit(op.less_equal(keys, rows))
    near = emit(op.less(emit(op.subtract(rows, keys)), relax.const(reach, "int64")))
    seen = emit(op.broadcast_to(emit(op.logical_and(ahead, near)), (BATCH, 1, ROWS, ROWS)))
    inside, outside = (
        emit(op.full((), relax.const(one, "float32"), dtype))
        for one in (0.0, float(np.finfo("float16").min))
    )
    return op.where(seen, inside, outside)


@pytest.mark.parametrize(
    ("kind", "dtype", "reach"),
    [
        ("cap", "float16", ROWS),
        beside("cap", "bfloat16", 20),
        ("sink", "bfloat16", 20),
        beside("sink", "float16", ROWS),
        ("slopes", "float16", ROWS),
        beside("factors", "float16", ROWS),
        beside("lowest", "float16", 20),
    ],
)
def test_it_is_one_kernel_that_reads_no_mask(kind: str, dtype: str, reach: int) -> None:
    mod = written(kind, dtype, reach)
    lowered = fused(mod)
    (one,) = (one for one in scheduled(lowered) if one.choice.rule == "attention")
    assert "topk" not in lowered.script()
    wide = [param.name for param in one.after.params if [*map(int, param.shape[-2:])] == [ROWS] * 2]
    assert wide == []
    check(one)
    if dtype == "float16":  # TVM's CPU code has no bfloat16.
        rng = np.random.default_rng(0)
        shapes = [tuple(map(int, param.ty.shape.values)) for param in mod["main"].params]
        arrays = [rng.standard_normal(shape).astype(TYPES[dtype]) for shape in shapes]
        arrays[-1] /= 8
        assert error_of(by_cpu(lowered, arrays), by_cpu(mod, arrays)) <= 1e-2
