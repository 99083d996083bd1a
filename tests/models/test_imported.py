"""What ``torch.export`` writes otherwise than Relax's modules is fused as theirs is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.models.running import check, fused, only, scheduled
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext.models.imported.hoist_reshapes import HoistReshapes
from tvm_layout_ext.models.relax_values import name_of

HALF = "float16"


def linear(behind: Any, batch: Any = 2, rows: int = 24, dtype: str = HALF) -> tvm.IRModule:
    """A linear as ``run_decompositions`` writes it, and what is computed from it."""

    def build(x: Any, w: Any, b: Any, y: Any) -> Any:
        product = op.matmul(op.reshape(x, (batch * rows, 64)), op.permute_dims(w, [1, 0]))
        return behind(emit(op.reshape(op.add(b, product), (batch, rows, 128))), y)

    shapes = (batch, rows, 64), (128, 64), (128,), (batch, rows, 128)
    return relax_module(build, *shapes, dtype=dtype)


def gelu(value: Any, _: Any) -> Any:
    """GELU of rows in one dim, as a decomposition may leave it between two linears."""
    return op.reshape(op.nn.gelu(op.reshape(value, (48, 128))), value.ty.shape)


def residual(value: Any, y: Any) -> Any:
    """What a block adds."""
    return op.add(y, value)


def twice(value: Any, y: Any) -> Any:
    """A value that two read: it is stored."""
    return op.multiply(op.add(y, value), op.nn.relu(value))


def scaled_by_rows(value: Any, _: Any) -> Any:
    """A factor a row: its place is in a dim that the reshape joins."""
    dtype = str(value.ty.dtype)
    factors = relax.const(np.linspace(1, 2, 24, dtype=dtype).reshape(24, 1), dtype)
    return op.multiply(value, op.abs(factors))


@pytest.mark.parametrize(
    ("behind", "names"),
    [(gelu, ("gelu",)), (residual, ("add",)), (twice, ()), (scaled_by_rows, ("multiply",))],
)
def test_what_follows_a_linear_ends_its_kernel(behind: Any, names: tuple[str, ...]) -> None:
    # LLVM takes seconds for float16.
    exact = linear(behind, dtype="float32")
    require_same(fused(exact), exact, 1e-4)
    product = only(linear(behind), "matmul")
    assert product.choice.rule == "warpgroups"
    assert all(name in product.name for name in names), product.name
    if behind is residual:
        check(product)


def test_a_symbolic_batch_is_hoisted_over() -> None:
    product = only(linear(residual, tvm.tirx.Var("n", "int64")), "matmul").name
    assert "add" in product.partition("cast")[2].partition("add")[2], product


@pytest.mark.parametrize(
    ("left", "right", "kept"),
    [
        ((3, 8, 16), (16, 8), (16, 8)),
        ((3, "n", 16), (16, 8), (16, 8)),
        ((1, 8, 16), (16, 8), (3, 16, 8)),
        ((3, 8, 16), (1, 16, 8), (1, 16, 8)),
    ],
)
def test_weights_are_not_repeated(left: Any, right: Any, kept: Any) -> None:
    def build(x: Any, w: Any) -> Any:
        return op.matmul(op.broadcast_to(x, x.ty.shape), op.broadcast_to(w, (3, 16, 8)))

    mod = relax_module(build, left, right)
    functions = [one.after for one in scheduled(mod)]
    (product,) = (one for one in functions if len(one.params) == 3)
    assert tuple(map(int, product.params[1].shape)) == kept
    require_same(fused(mod), mod, 1e-2)


def rms(x: Any, w: Any, _: Any) -> Any:
    """A norm as LLaMA writes it."""
    kind = str(x.ty.dtype)
    wide = emit(op.astype(x, "float32"))
    square = emit(op.power(wide, relax.const(2.0, "float32")))
    least = emit(op.add(emit(op.mean(square, -1, keepdims=True)), relax.const(1e-5, "float32")))
    return op.multiply(w, emit(op.astype(emit(op.multiply(wide, emit(op.rsqrt(least)))), kind)))


def layer(x: Any, w: Any, _: Any) -> Any:
    """A norm of a sum, its mean and variance written out."""
    x = emit(op.add(x, w))
    apart = emit(op.subtract(x, emit(op.mean(x, -1, keepdims=True))))
    spread = emit(op.sum(emit(op.multiply(apart, apart)), -1, keepdims=True))
    return op.multiply(apart, emit(op.rsqrt(spread)))


def read_twice(x: Any, w: Any, _: Any) -> Any:
    """A norm of what is a result, too."""
    x = emit(op.add(x, w))
    length = emit(op.sum(emit(op.multiply(x, x)), -1, keepdims=True))
    return relax.Tuple([x, emit(op.divide(x, length))])


def behind_product(x: Any, w: Any, square: Any) -> Any:
    """A norm of what ends a product."""
    x = emit(op.add(emit(op.matmul(x, square)), w))
    length = emit(op.sum(emit(op.multiply(x, x)), -1, keepdims=True))
    return op.divide(x, length)


def around_another(x: Any, w: Any, square: Any) -> Any:
    """A sum and a reader of it with a product of that sum between them."""
    x = emit(op.multiply(x, w))
    total = emit(op.sum(emit(op.multiply(x, x)), -1, keepdims=True))
    other = emit(op.matmul(emit(op.multiply(w, total)), square))
    return op.add(emit(op.multiply(x, total)), other)


def continued(x: Any, _: Any, __: Any) -> Any:
    """A norm that is a result, and what is computed from it."""
    length = emit(op.sum(emit(op.multiply(x, x)), -1, keepdims=True))
    x = emit(op.divide(x, length))
    return relax.Tuple([x, emit(op.nn.relu(x))])


def across(x: Any, _: Any, __: Any) -> Any:
    """Means of columns."""
    return op.mean(emit(op.multiply(x, x)), 1, keepdims=True)


def of_slices(x: Any, *_: Any, axis: int = 1, at: int = 3) -> Any:
    """Norms of some rows each, as of heads that one product gives."""
    ends = ((0, at), (at, int(x.ty.shape.values[axis])))
    parts = [emit(op.strided_slice(x, [axis], [begin], [end])) for begin, end in ends]
    squares = [emit(op.sum(emit(op.multiply(one, one)), -1, keepdims=True)) for one in parts]
    pairs = zip(parts, squares, strict=True)
    return relax.Tuple([emit(op.divide(one, other)) for one, other in pairs])


def of_columns(x: Any, *_: Any) -> Any:
    """Norms of some columns each."""
    return of_slices(x, axis=2, at=21)


def of_a_slice(x: Any, w: Any, _: Any) -> Any:
    """A norm of some rows, which alone are computed."""
    part = emit(op.strided_slice(emit(op.add(x, w)), [1], [0], [2]))
    return op.divide(part, emit(op.sum(emit(op.multiply(part, part)), -1, keepdims=True)))


def of_rows(build: Any, batch: Any, dtype: str = HALF) -> tvm.IRModule:
    """A chain along rows of 64; the weight is a constant, as imports have it."""
    weight = relax.const(np.random.default_rng(2).uniform(0.5, 1, 64).astype(dtype))
    shapes = (batch, 5, 64), (64, 64)
    return relax_module(lambda x, square: build(x, weight, square), *shapes, dtype=dtype)


@pytest.mark.parametrize(
    ("build", "count"),
    [
        *((rms, 1), (layer, 1), (read_twice, 2), (behind_product, 2), (around_another, 4)),
        *((continued, 2), (across, 2), (of_slices, 2), (of_columns, 2)),
    ],
)
def test_a_chain_along_rows_is_one_function(build: Any, count: int) -> None:
    exact = of_rows(build, 3, "float32")
    require_same(fused(exact), exact, 1e-4)
    found = scheduled(of_rows(build, 3))
    assert len(found) == count, [one.name for one in found]
    if build is behind_product:
        assert any("matmul" in one.name and "add" in one.name for one in found)
    if count == 1 or build in (of_slices, of_columns):
        for one in found:
            check(one, "rows")


def test_what_a_slice_leaves_out_is_not_computed() -> None:
    found = scheduled(of_rows(of_a_slice, 3))
    results = [one.before.params[-1] for one in found]
    assert [[*map(int, one.shape)] for one in results] == [[3, 2, 64]] * 2


def test_a_norm_of_a_symbolic_batch_is_one_kernel() -> None:
    check(only(of_rows(rms, "n")), "rows")


def test_a_number_with_a_name_is_no_input_of_a_chain() -> None:
    """CUDA has no power of a negative number by an exponent that it is not told beforehand."""

    def named(x: Any, w: Any, _: Any) -> Any:
        two = emit(op.astype(relax.const(2.0), HALF))
        squares = emit(op.astype(emit(op.power(x, two)), "float32"))
        mean = emit(op.mean(squares, -1, keepdims=True))
        wide = emit(op.multiply(emit(op.astype(x, "float32")), emit(op.rsqrt(mean))))
        return op.astype(emit(op.multiply(wide, emit(op.astype(w, "float32")))), HALF)

    one = only(of_rows(named, 3))
    assert [len(param.shape) for param in one.before.params] == [3, 1, 3]
    check(one)


def two_products(x: Any, square: Any, behind: Any) -> list[Any]:
    """Products of what a norm gives, reshaped and rounded; their reshapes are from ``behind``."""
    product = emit(op.multiply(x, emit(op.rsqrt(emit(op.mean(emit(op.square(x)), -1, True))))))
    rows = emit(op.astype(emit(op.reshape(product, (15, 64))), HALF))
    ends = [emit(op.matmul(rows, square, out_dtype="float32")) for _ in range(2)]
    return [emit(op.reshape(emit(op.astype(one, HALF)), behind)) for one in ends]


@pytest.mark.parametrize("behind", [(3, 5, 64), (3, 5, 4, 16)])
def test_a_norm_writes_what_products_read(behind: tuple[int, ...]) -> None:
    def build(x: Any, square: Any) -> Any:
        return relax.Tuple([op.sum(one, -1) for one in two_products(x, square, behind)])

    mod = relax_module(build, ((3, 5, 64), "float32"), (64, 64))
    made = {one.name: one for one in scheduled(mod)}
    norm = made.pop("fused_square_mean_rsqrt_multiply_astype")
    assert sorted(name.rstrip("1") for name in made) == ["fused_matmul_cast", "sum"]
    assert [str(one.dtype) for one in norm.before.params] == ["float32", HALF]
    check(norm, "rows")


def rounded(build: Any, kind: Any) -> list[str]:
    """Operators of a function of a tensor, hoisted."""
    mod = relax_module(build, kind)
    hoisted = HoistReshapes()(mod)
    require_same(hoisted, mod, 1e-3)
    return [name_of(one.value) for block in hoisted["main"].body.blocks for one in block.bindings]


WIDE = ((2, 3, 8), "float32")


def test_a_rounding_goes_before_reshapes() -> None:
    def build(x: Any) -> Any:
        view = emit(op.reshape(emit(op.reshape(emit(op.abs(x)), (6, 8))), (3, 16)))
        return op.negative(emit(op.astype(view, HALF)))

    assert rounded(build, WIDE) == ["abs", "astype", "reshape", "negative"]


@pytest.mark.parametrize(
    ("build", "kind", "names"),
    [
        # What is widened is read in fewer bytes behind.
        (lambda x: op.astype(emit(op.reshape(x, (6, 8))), "float32"), HALF, None),
        # Integers of packed weights are unpacked as they are read.
        (lambda x: op.astype(emit(op.reshape(x, (6, 8))), HALF), "int8", None),
        (
            lambda x: op.astype(emit(op.permute_dims(x, [1, 0, 2])), HALF),
            "float32",
            ["permute_dims", "astype"],
        ),
    ],
)
def test_other_casts_stay_where_they_are(build: Any, kind: str, names: Any) -> None:
    assert rounded(build, ((2, 3, 8), kind)) == (names or ["reshape", "astype"])


def test_names_that_nobody_reads_are_no_readers() -> None:
    def build(x: Any) -> Any:
        value = emit(op.abs(emit(op.reshape(x, (6, 8)))))
        emit(value)
        return op.reshape(value, (2, 3, 8))

    assert rounded(build, WIDE) == ["abs"]


FLAT = (6, 8)
SQUARES = relax.const(np.ones((4, 2, 8, 8), "float32"))


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (lambda x: op.reshape(x, FLAT), lambda x: op.astype(x, HALF)),
        (lambda x: op.reshape(x, FLAT), lambda x: op.reshape(op.exp(x), (2, 3, 8))),
        (lambda x: op.reshape(x, FLAT), lambda x: op.reshape(x, (3, 16))),
        (lambda x: op.permute_dims(x, [1, 0, 2]), lambda x: op.permute_dims(x, [2, 1, 0])),
        (lambda x: op.permute_dims(x, [1, 0, 2]), lambda x: op.split(x, 2, -1)[0]),
        (lambda x: op.split(x, 2, -1), lambda x: op.exp(x[0])),
        (lambda x: op.broadcast_to(x, (4, 2, 3, 8)), lambda x: op.matmul(x, SQUARES)),
    ],
)
def test_what_another_block_computes_is_not_read(before: Any, behind: Any) -> None:
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType(*WIDE))
    with builder.function("main", [x], pure=False):
        with builder.dataflow():
            between = builder.emit_output(before(builder.emit(op.abs(x))))
        builder.emit(op.print(x, format="{}"))
        with builder.dataflow():
            out = builder.emit_output(behind(between))
        builder.emit_func_output(out)
    relax.analysis.well_formed(fused(builder.get()))
