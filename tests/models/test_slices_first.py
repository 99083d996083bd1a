"""What is computed of rows that nobody reads is not computed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.ir.queries import nodes_of
from tvm_layout_ext.models.moves.slices_first import SlicesFirst
from tvm_layout_ext.models.relax_values import dims_of, extents_of, name_of

HALF = "float16"
IMAGE = (4, 10, 64)


def weight(rows: int, columns: int, dtype: str = "float32") -> relax.Expr:
    values = np.random.default_rng(rows + columns).normal(0, rows**-0.5, (rows, columns))
    return relax.const(values.astype(dtype))


def normed(x: Any, dtype: str = "float32") -> relax.Expr:
    ones = relax.const(np.linspace(0.5, 1.5, 64).astype(dtype))
    return op.nn.layer_norm(x, ones, ones, [-1])


def shapes_of(mod: Any, name: str) -> list[list[int] | None]:
    return [dims_of(one) for one in nodes_of(mod["main"]) if name_of(one) == name]


def layer(x: Any) -> relax.Expr:
    """The second half of a layer of a transformer."""
    z = op.nn.gelu(op.matmul(normed(x), weight(64, 128)))
    return op.add(x, op.matmul(z, weight(128, 64)))


#: What reads one place, or few, of the second dim of a value.
SLICES: dict[str, Any] = {
    "a slice": lambda y: op.strided_slice(y, [1], [2], [5]),
    "of the end": lambda y: op.strided_slice(y, [1], [-1], [10]),
    "a place": lambda y: op.take(y, relax.const(np.int64(0)), 1, mode="fast"),
}


@pytest.mark.parametrize("name", SLICES)
def test_a_layer_is_computed_of_the_rows_that_are_read(name: str) -> None:
    mod = relax_module(
        lambda x: op.matmul(SLICES[name](normed(layer(x))), weight(64, 8)), IMAGE, dtype="float32"
    )
    after = SlicesFirst()(mod)
    rows = 3 if name == "a slice" else 1
    assert [one[-2] for one in shapes_of(after, "matmul") if one[-1] != 8] == [rows, rows]
    assert all(one == [4, rows, 64] for one in shapes_of(after, "nn.layer_norm"))
    require_same(after, mod, 1e-6)


#: What is computed of rows, by what else: (4, 10, 64) to a slice of the second dim but for one.
ROWS: dict[str, Any] = {
    "moved": lambda x: op.permute_dims(op.exp(x), [1, 0, 2]),
    "viewed": lambda x: op.permute_dims(op.reshape(op.exp(x), [4, 10, 8, 8]), [1, 2, 0, 3]),
    "summed": lambda x: op.permute_dims(op.sum(op.exp(x), [-1]), [1, 0]),
    "a mean": lambda x: op.permute_dims(op.mean(op.exp(x), [2], True), [1, 0, 2]),
    "repeated": lambda x: op.permute_dims(op.add(op.exp(x), op.mean(x, [1], True)), [1, 0, 2]),
    "softmax": lambda x: op.permute_dims(op.nn.softmax(x, -1), [1, 0, 2]),
    "products": lambda x: op.permute_dims(op.matmul(x, op.permute_dims(x, [0, 2, 1])), [1, 0, 2]),
}


@pytest.mark.parametrize("name", ROWS)
def test_slices_go_before_what_keeps_rows(name: str) -> None:
    mod = relax_module(
        lambda x: op.strided_slice(ROWS[name](x), [0], [3], [5]), IMAGE, dtype="float32"
    )
    after = SlicesFirst()(mod)
    for call in nodes_of(after["main"]):
        assert name_of(call) not in ("exp", "nn.softmax") or dims_of(call) == [4, 2, 64]
    require_same(after, mod, 1e-6)


def test_any_number_of_images() -> None:
    mod = relax_module(
        lambda x: op.take(normed(layer(x)), relax.const(np.int64(0)), 1, mode="fast"),
        ("n", 10, 64),
        dtype="float32",
    )
    after = SlicesFirst()(mod)
    shapes = [extents_of(one) for one in nodes_of(after["main"]) if name_of(one) == "matmul"]
    assert [int(one[1]) for one in shapes] == [1, 1]
    require_same(after, mod, 1e-6)


def test_a_window_of_places_counts_the_rows() -> None:
    def build(x: Any) -> relax.Expr:
        attend = op.nn.attention(x, x, x, causal_mask="TopLeft", window_size=3)
        return op.strided_slice(attend, [1], [5], [6])

    mod = relax_module(build, (2, 70, 2, 64), dtype=HALF)
    assert SlicesFirst()(mod).same_as(mod)


#: What is to be computed of all rows.
WHOLE: dict[str, Any] = {
    "along the rows": lambda x: op.strided_slice(op.nn.softmax(x, 1), [1], [0], [1]),
    "other parts": lambda x: op.add(
        *(op.strided_slice(y, [1], [at], [at + 1]) for y in [relax.op.exp(x)] for at in (0, 1))
    ),
    "most rows": lambda x: op.strided_slice(op.exp(x), [1], [1], [10]),
    "by steps": lambda x: op.strided_slice(op.exp(x), [1], [0], [9], [3]),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_read_otherwise_is_computed_whole(name: str) -> None:
    mod = relax_module(WHOLE[name], IMAGE, dtype="float32")
    assert SlicesFirst()(mod).same_as(mod)


def test_what_the_function_gives_is_whole() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(IMAGE, "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(op.exp(x))
            z = builder.emit_output(op.strided_slice(y, [1], [0], [1]))
        builder.emit_func_output(relax.Tuple([y, z]))
    mod = builder.get()
    assert SlicesFirst()(mod).same_as(mod)


@pytest.mark.parametrize("rows", [1, 2])
def test_attention_of_a_token_among_others_is_one_kernel(rows: int) -> None:
    """As that of a classifier, whose keys and values are those of all tokens."""

    def build(x: Any) -> relax.Expr:
        heads = op.permute_dims(op.reshape(x, [2, 70, 3, 2, 64]), [2, 0, 1, 3, 4])
        q, k, v = (op.squeeze(op.strided_slice(heads, [0], [at], [at + 1]), [0]) for at in range(3))
        return op.strided_slice(op.nn.attention(q, k, v), [1], [0], [rows])

    mod = relax_module(build, (2, 70, 384), dtype=HALF)
    found = scheduled(mod)
    assert [one.choice.rule for one in found] == ["attention"]
    check(found[0], "attention")


def test_a_slice_that_begins_with_the_first_row_ends_no_product() -> None:
    """TVM calls it elementwise; of most rows it is no slice of what is multiplied, either."""

    def build(x: Any) -> relax.Expr:
        return op.strided_slice(op.matmul(x, weight(64, 64, HALF)), [1], [0], [9])

    mod = relax_module(build, IMAGE, dtype=HALF)
    assert len(scheduled(mod)) == 2
    assert only(fused(mod), "matmul").choice.rule == "warpgroups"
