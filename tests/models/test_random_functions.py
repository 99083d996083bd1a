"""Random Relax operators through the pass, beside TVM's CPU code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import tvm
from tvm import relax, tirx

from tests.models.running import check, scheduled

EXTENTS = (1, 2, 3, 7, 8, 16, 17, 31, 33)
TYPES = ("float16", "float32", "bfloat16")
Draw = Callable[[Any], Any]


def product(draw: Draw, dtype: str, n: Any) -> tuple[list[Any], Callable[..., Any]]:
    """A product with broadcast or missing batches, either storage order, and an epilogue."""
    m, k = (draw(st.sampled_from((1, 5, 16, 33))) for _ in range(2))
    batch = draw(st.sampled_from(([], [1], [2], [3, 1])))
    other = draw(st.sampled_from(([], batch)))
    rows = n if n is not None else m
    turned = draw(st.booleans())
    columns = draw(st.sampled_from((1, 8, 24)))
    shapes = [[*batch, rows, k], [*other, columns, k] if turned else [*other, k, columns]]

    def build(a: Any, b: Any) -> Any:
        if turned:
            axes = [*range(len(other)), len(other) + 1, len(other)]
            b = relax.op.permute_dims(b, axes)
        return relax.op.nn.relu(relax.op.matmul(a, b))

    return [relax.TensorType(shape, dtype) for shape in shapes], build


def unary(draw: Draw, dtype: str, n: Any) -> tuple[list[Any], Callable[..., Any]]:
    """A reduction, a permutation, a pad, a split, a softmax or a norm of up to three dims."""
    shape = draw(st.lists(st.sampled_from(EXTENTS), min_size=2, max_size=3))
    if n is not None:
        shape[0] = n
    axis = draw(st.integers(0, len(shape) - 1))
    last = len(shape) - 1
    ways: list[Callable[[Any], Any]] = [
        lambda a: relax.op.sum(a, axis=axis),
        lambda a: relax.op.max(a, axis=axis, keepdims=True),
        lambda a: relax.op.mean(a, axis=None if n is None else last),
        lambda a: relax.op.permute_dims(a),
        lambda a: relax.op.nn.pad(a, [0, 0] * last + [1, 2]),
        lambda a: relax.op.concat([a, a], axis=axis),
        lambda a: relax.op.nn.softmax(a, axis=last),
        lambda a: relax.op.exp(relax.op.multiply(a, a)),
        lambda a: relax.op.cumsum(a, axis=last),
        lambda a: relax.op.flip(a, axis=axis),
    ]
    return [relax.TensorType(shape, dtype)], draw(st.sampled_from(ways))


def binary(draw: Draw, dtype: str, n: Any) -> tuple[list[Any], Callable[..., Any]]:
    """A broadcast sum, a choice, or rows that are gathered."""
    rows, columns = draw(st.sampled_from(EXTENTS)), draw(st.sampled_from(EXTENTS))
    first = [rows if n is None else n, columns]
    if draw(st.booleans()):
        index = relax.TensorType([draw(st.sampled_from(EXTENTS))], "int32")
        table = relax.TensorType([max(rows, 3), columns], dtype)
        return [table, index], lambda a, i: relax.op.take(a, i, axis=0)
    other = draw(st.sampled_from(([columns], [1, columns], [1, 1])))
    types = [relax.TensorType(shape, dtype) for shape in (first, other)]
    return types, lambda a, b: relax.op.where(relax.op.less(a, b), a, relax.op.add(a, b))


def module(draw: Draw) -> tvm.IRModule:
    """A Relax function of one operator or two."""
    dtype = draw(st.sampled_from(TYPES))
    n = tirx.Var("n", "int64") if draw(st.integers(0, 3)) == 0 else None
    types, build = draw(st.sampled_from((product, product, unary, unary, unary, binary)))(
        draw, dtype, n
    )
    params = [relax.Var(f"x{at}", one) for at, one in enumerate(types)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            out = builder.emit_output(builder.normalize(build(*params)))
        builder.emit_func_output(out)
    return builder.get()


@hypothesis.settings(max_examples=48)
@hypothesis.given(st.data())
def test_random_functions_are_right(data: Any) -> None:
    for one in scheduled(module(data.draw)):
        assert one.choice.rule != "none", one.choice.text
        assert one.choice.text.endswith(".")
        assert one.choice.refused or not one.choice.fell_back
        check(one)
