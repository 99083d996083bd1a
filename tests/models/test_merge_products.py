"""Products of the same rows whose columns are heads become one, where slices are read in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from benchmarks.relax_numbers import error_of
from tests.models.cpu import by_cpu, given_to
from tests.models.running import TARGET, check, fused, scheduled
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext import cuda_target
from tvm_layout_ext.ir.queries import nodes_of
from tvm_layout_ext.models.bindings import Bindings
from tvm_layout_ext.models.imported.merge_products import MergeProducts
from tvm_layout_ext.models.pipeline import lowered_passes
from tvm_layout_ext.models.quantised.pack_weights import PackWeights
from tvm_layout_ext.models.relax_values import dims_of, name_of

HALF, WIDE = "float16", "float32"
ROWS, TERMS, LENGTH = 24, 64, 64


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Numbers of 16 bits around zero."""
    return np.random.default_rng(seed).normal(0, 0.2, shape).astype(HALF)


class _Layer:
    """Writes a layer of attention as ``torch.export`` and ``MixedPrecision`` leave it."""

    def __init__(self, batch: Any = 2, heads: tuple[int, int] = (2, 2), bias: str = "") -> None:
        self.batch, self.heads, self.bias = batch, heads, bias

    def weight(self, heads: int, seed: int) -> Any:
        """A constant N x K."""
        return relax.const(drawn(heads * LENGTH, TERMS, seed=seed))

    def linear(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """A product, rounded."""
        turned = emit(op.permute_dims(weight, [1, 0]))
        product = emit(op.matmul(x, turned, out_dtype="float32"))
        half = emit(op.astype(product, HALF))
        return half if bias is None else emit(op.add(bias, half))

    def split(self, value: Any, length: int = LENGTH) -> Any:
        """Its heads."""
        heads = int(value.ty.shape.values[-1]) // length
        return emit(op.reshape(value, (self.batch, ROWS, heads, length)))

    def projected(self, x: Any, heads: int, name: str, weight: Any = None) -> Any:
        """Q, K or V by a weight of its own."""
        seed = "qkv".index(name)
        weight = self.weight(heads, seed) if weight is None else weight
        bias = relax.const(drawn(heads * LENGTH, seed=9 + seed)) if name in self.bias else None
        return self.linear(x, weight, bias)

    def attention(self, q: Any, k: Any, v: Any) -> Any:
        """Attention over heads that may be shared."""
        shared = self.heads[0] // self.heads[1]
        if shared > 1:
            k, v = (emit(op.repeat(one, shared, 2)) for one in (k, v))
        return emit(op.nn.attention(q, k, v))

    def module(self, build: Callable[[_Layer, Any, Any, Any], Any]) -> tvm.IRModule:
        """A module of what is built of the parameters."""
        rows = self.batch, ROWS, TERMS
        return relax_module(lambda *given: build(self, *given), rows, rows, (2 * LENGTH, TERMS))


def plain(one: _Layer, x: Any, *_: Any) -> Any:
    """Heads that attention reads as they are."""
    count, shared = one.heads
    named = zip((count, shared, shared), "qkv", strict=True)
    return one.attention(*(one.split(one.projected(x, heads, name)) for heads, name in named))


def _rotated(one: _Layer, value: Any) -> Any:
    """A rotary embedding."""
    first, last = (
        emit(op.strided_slice(value, [3], [begin], [begin + LENGTH // 2]))
        for begin in (0, LENGTH // 2)
    )
    turned = emit(op.concat([emit(op.negative(last)), first], 3))
    angles = relax.const(drawn(1, ROWS, 1, LENGTH, seed=5))
    sides = [emit(op.multiply(side, angles)) for side in (value, turned)]
    return emit(op.add(*sides))


def _normed(one: _Layer, value: Any) -> Any:
    """A norm of each head."""
    wide = emit(op.astype(value, "float32"))
    square = emit(op.multiply(wide, wide))
    mean = emit(op.mean(square, -1, keepdims=True))
    root = emit(op.rsqrt(emit(op.add(mean, relax.const(1e-5, "float32")))))
    return emit(op.astype(emit(op.multiply(wide, root)), HALF))


def _of_heads(change: Any) -> Any:
    def build(one: _Layer, x: Any, *_: Any) -> Any:
        """Q and K that something is computed of."""
        q, k, v = (
            one.split(one.projected(x, heads, name))
            for heads, name in zip((one.heads[0], *one.heads[1:] * 2), "qkv", strict=True)
        )
        return one.attention(change(one, q), change(one, k), v)

    return build


rotated, normed = _of_heads(_rotated), _of_heads(_normed)


def products(mod: tvm.IRModule) -> list[relax.Call]:
    """Products of a module after the pass."""
    with TARGET:
        reader = Bindings.of(MergeProducts()(mod)["main"])
    return [one for one in reader.bound.values() if name_of(one) == "matmul"]


def apart(mod: tvm.IRModule) -> tvm.IRModule:
    """A module lowered without the pass."""
    passes = [one for one in lowered_passes(TARGET) if "MergeProducts" not in one.info.name]
    with TARGET:
        return tvm.transform.Sequential(passes)(mod)


def test_weights_that_are_joined_are_packed_together() -> None:
    passes = lowered_passes(TARGET, (), PackWeights(8))
    with TARGET:
        after = tvm.transform.Sequential(passes)(_Layer(heads=(8, 8)).module(plain))
    found = {tuple(dims_of(one) or ()) for one in nodes_of(after["main"]) if is_word(one)}
    assert found == {(24 * LENGTH, TERMS // 4)}


def is_word(value: Any) -> bool:
    return isinstance(value, tvm.ir.GenericConst) and str(value.ty.dtype) == "uint32"


def test_one_product_has_the_rows_of_all_weights_and_biases() -> None:
    with TARGET:
        after = MergeProducts()(_Layer(heads=(4, 2), bias="qv").module(plain))
    reader = Bindings.of(after["main"])
    calls = [*reader.bound.values()]
    (turned,) = (one for one in calls if name_of(one) == "permute_dims")
    weights = [drawn(heads * LENGTH, TERMS, seed=i) for i, heads in enumerate((4, 2, 2))]
    np.testing.assert_array_equal(turned.args[0].value.numpy(), np.concatenate(weights))
    (added,) = (one for one in calls if name_of(one) == "add")
    biases = [drawn(4 * LENGTH, seed=9), np.zeros(2 * LENGTH), drawn(2 * LENGTH, seed=11)]
    np.testing.assert_array_equal(added.args[1].value.numpy(), np.concatenate(biases))
    parts = [one for one in calls if name_of(one) == "strided_slice"]
    assert [[int(n[0]) for n in one.args[1:4]] for one in parts] == [
        [2, 0, 4],
        [2, 4, 6],
        [2, 6, 8],
    ]
    assert not any(name_of(one) == "concat" for one in calls)


@pytest.mark.costly
@pytest.mark.parametrize(
    ("build", "heads", "batch", "count"),
    [
        (plain, (2, 2), 2, 2),
        (plain, (4, 2), tvm.tirx.Var("n", "int64"), 2),
        (rotated, (4, 2), 2, 4),
        (normed, (4, 2), 2, 4),
        (normed, (4, 2), tvm.tirx.Var("n", "int64"), 4),
    ],
)
def test_slices_are_read_in_place(
    build: Any, heads: tuple[int, int], batch: Any, count: int
) -> None:
    found = scheduled(_Layer(batch, heads, "qkv").module(build))
    assert len(found) == count, [one.name for one in found]
    assert not any(one.choice.fell_back for one in found)
    (product,) = (one for one in found if "matmul" in one.name)
    assert product.choice.rule == "warpgroups"
    assert "add" in product.name
    if isinstance(batch, int):
        for one in found:
            check(one)


@pytest.mark.costly
@pytest.mark.parametrize(("build", "heads"), [(plain, (2, 2)), (rotated, (4, 2)), (normed, (4, 2))])
def test_results_are_those_of_products_apart(build: Any, heads: tuple[int, int]) -> None:
    mod = _Layer(1, heads, "qk").module(build)
    arrays = given_to(mod)
    merged, other = (by_cpu(one, arrays) for one in (fused(mod), apart(mod)))
    assert error_of(merged, other) <= 1e-3
    assert error_of(merged, by_cpu(mod, arrays)) <= 1e-2


def given_weights(one: _Layer, x: Any, _: Any, w: Any) -> Any:
    """Weights that are a parameter."""
    heads = [one.split(one.projected(x, 2, name, w)) for name in "qkv"]
    return one.attention(*heads)


def tied(one: _Layer, x: Any, *_: Any) -> Any:
    """A weight of K and V, and one that is a result, too."""
    q, k = one.weight(2, 0), one.weight(2, 1)
    heads = [one.split(one.projected(x, 2, "q", weight)) for weight in (q, k, k)]
    return relax.Tuple([one.attention(*heads), emit(op.abs(q))])


def of_other_rows(one: _Layer, x: Any, y: Any, _: Any) -> Any:
    """Q of some rows, K of others."""
    q, k = (one.split(one.projected(rows, 2, name)) for rows, name in ((x, "q"), (y, "k")))
    return one.attention(q, k, k)


def results(one: _Layer, x: Any, *_: Any) -> Any:
    """Keys and values that are kept."""
    q, k, v = (one.split(one.projected(x, 2, name)) for name in "qkv")
    return relax.Tuple([one.attention(q, k, v), k, v])


def with_ends(one: _Layer, x: Any, *_: Any) -> Any:
    """What ends the kernels of products."""
    q, k = (emit(op.nn.relu(one.projected(x, 2, name))) for name in "qk")
    return one.attention(one.split(q), one.split(k), one.split(k))


def of_operators(one: _Layer, x: Any, *_: Any) -> Any:
    """Norms that are operators, which read no slices."""
    ones = relax.const(np.ones(LENGTH, HALF)), relax.const(np.zeros(LENGTH, HALF))
    q, k = (
        emit(op.nn.layer_norm(one.split(one.projected(x, 2, name)), *ones, axes=[-1]))
        for name in "qk"
    )
    return one.attention(q, k, k)


def of_wide_operators(one: _Layer, x: Any, *_: Any) -> Any:
    """The same of what is widened first."""
    ones = relax.const(np.ones(LENGTH, WIDE)), relax.const(np.zeros(LENGTH, WIDE))
    sides = list[Any]()
    for name in "qk":
        wide = emit(op.astype(one.split(one.projected(x, 2, name)), "float32"))
        normed = emit(op.nn.layer_norm(wide, *ones, axes=[-1]))
        sides.append(emit(op.astype(normed, HALF)))
    return one.attention(*sides, sides[1])


def without_a_kernel(one: _Layer, x: Any, *_: Any) -> Any:
    """Heads of which there is no kernel, so that attention would copy them."""
    return one.attention(*(one.split(one.projected(x, 16, name), 512) for name in "qkv"))


def gated(one: _Layer, x: Any, *_: Any) -> Any:
    """A gate and what it is multiplied by."""
    gate, up = (one.projected(x, 2, name) for name in "qk")
    return emit(op.multiply(emit(op.nn.silu(gate)), up))


def of_short_heads(one: _Layer, x: Any, *_: Any) -> Any:
    """Heads that do not begin with a vector."""
    heads = (one.split(one.projected(x, 2, name), 4) for name in "qk")
    return relax.Tuple([emit(op.abs(value)) for value in heads])


def of_one_column(one: _Layer, x: Any, *_: Any) -> Any:
    """Numbers of each row, seen as a matrix of whole vectors."""
    weights = (relax.const(drawn(1, TERMS, seed=seed)) for seed in range(2))
    seen = [emit(op.reshape(one.linear(x, weight), (one.batch, ROWS))) for weight in weights]
    return emit(op.multiply(*seen))


def summed(one: _Layer, x: Any, *_: Any) -> Any:
    """Sums of heads, which are no sums of rows."""
    heads = (one.split(one.projected(x, 2, name)) for name in "qk")
    return relax.Tuple([emit(op.sum(value, 2)) for value in heads])


def doubled(one: _Layer, x: Any, *_: Any) -> Any:
    """Products that are added to themselves."""
    sums = (one.projected(x, 2, name) for name in "qk")
    q, k = (one.split(emit(op.add(value, value))) for value in sums)
    return one.attention(q, k, k)


def in_full(one: _Layer, x: Any, *_: Any) -> Any:
    """Products of 32 bits, rounded."""
    x, heads = emit(op.astype(x, WIDE)), list[Any]()
    for seed in range(2):
        weight = relax.const(drawn(2 * LENGTH, TERMS, seed=seed).astype(WIDE))
        heads.append(one.split(one.linear(x, weight)))
    return one.attention(*heads, heads[1])


def read_apart(one: _Layer, x: Any, *_: Any) -> Any:
    """Heads of which two functions compute something each."""
    q, k = (one.split(one.projected(x, 2, name)) for name in "qk")
    computed = [emit(op.abs(value)) for value in (q, k)]
    return relax.Tuple([*computed, *(emit(op.exp(value)) for value in (q, k))])


def of_layers(one: _Layer, x: Any, y: Any, _: Any) -> Any:
    """Keys and values of two layers, of the same rows."""
    out = one.split(x, LENGTH)
    for seed in (0, 10):
        k, v = (one.split(one.projected(y, 1, "k", one.weight(1, seed + i))) for i in range(2))
        out = one.attention(out, k, v)
    return out


@pytest.mark.parametrize(
    ("build", "count"),
    [
        *((given_weights, 3), (tied, 3), (of_other_rows, 2), (results, 3), (with_ends, 2)),
        *((of_operators, 2), (of_wide_operators, 2), (without_a_kernel, 3), (gated, 2)),
        *((of_short_heads, 2), (read_apart, 2), (of_layers, 2)),
        *((summed, 2), (doubled, 2), (in_full, 2), (of_one_column, 2)),
    ],
)
def test_products_stay_apart_where_that_is_better(build: Any, count: int) -> None:
    assert len(products(_Layer().module(build))) == count


def test_only_those_that_are_read_in_place_are_merged() -> None:
    def build(one: _Layer, x: Any, *_: Any) -> Any:
        q, k, v = (one.split(one.projected(x, 2, name)) for name in "qkv")
        return relax.Tuple([one.attention(q, k, v), v])

    columns = [(dims_of(one.args[1]) or [])[1] for one in products(_Layer().module(build))]
    assert sorted(columns) == [2 * LENGTH, 4 * LENGTH]


def test_what_another_block_reads_stays_apart() -> None:
    one, builder = _Layer(), relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((one.batch, ROWS, TERMS), HALF))
    with builder.function("main", [x], pure=False):
        with builder.dataflow():
            results = [builder.emit_output(one.projected(x, 2, name)) for name in "qk"]
        emit(op.print(x, format="{}"))
        with builder.dataflow():
            q, k = map(one.split, results)
            out = builder.emit_output(one.attention(q, k, k))
        builder.emit_func_output(out)
    assert len(products(builder.get())) == 2


def test_other_targets_keep_their_products() -> None:
    mod = _Layer().module(plain)
    with cuda_target("sm_80"):
        after = MergeProducts()(mod)
    assert after.same_as(mod)
