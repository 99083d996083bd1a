"""Gates by packed weights: up to 64 rows one kernel unpacks both weights; others stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx
from tvm.relax import op

from tests.models.running import TARGET, Scheduled, check
from tests.models.test_pack_weights import (
    TYPES,
    assert_near,
    drawn,
    functions,
    linear,
    unpacked,
)
from tests.programs.relaxed import emit, relax_module
from tvm_layout_ext import TargetError, build, te
from tvm_layout_ext.cubin import compiled_code
from tvm_layout_ext.errors import ScheduleError
from tvm_layout_ext.models.quantised.few_rows import few_rows
from tvm_layout_ext.models.quantised.tensor_rows import tensor_rows
from tvm_layout_ext.models.quantised.unpacked import read_unpacked
from tvm_layout_ext.tune.space.functions import blocks_of

#: Terms, and columns of a product, of which the last warps of a block have none.
K, N = 256, 260
#: What is made of a gate, by Relax and by NumPy.
ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "silu": (op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    "gelu": (op.nn.gelu, lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2),
    "gelu_tanh": (
        op.nn.gelu_tanh,
        lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
    ),
    "relu": (op.nn.relu, lambda x: np.maximum(x, 0)),
    "sigmoid": (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
}
#: What is done with both products, each a value of its own.
FORMS = ("two", "turned", "halves", "biases", "scaled")


def _biased(x: Any, weight: Any, dtype: str) -> Any:
    """A product with a bias that is added before it is rounded, as torch does."""
    product = emit(op.matmul(x, op.permute_dims(relax.const(weight)), out_dtype="float32"))
    bias = emit(op.astype(relax.const(weight[:, 0].copy()), "float32"))
    return emit(op.astype(emit(op.add(product, bias)), dtype))


def gate(x: Any, form: str, act: str, dtype: str) -> Any:
    """A gate by constant weights."""
    function = ACTIVATIONS[act][0]
    if form == "halves":
        both = linear(x, drawn(2 * N, K, dtype=dtype), dtype)
        first, up = (emit(op.strided_slice(both, [1], [at], [at + N])) for at in (0, N))
    else:
        weights = (drawn(N, K, dtype=dtype, seed=one) for one in (0, 1))
        make = _biased if form == "biases" else linear
        first, up = (make(x, one, dtype) for one in weights)
    if form == "scaled":
        up = emit(op.multiply(up, relax.const(0.5, dtype)))
    sides = emit(function(first)), up
    return emit(op.multiply(*sides[:: -1 if form == "turned" else 1]))


def packed(form: str, act: str, dtype: str, bits: int, rows: Any) -> list[Scheduled]:
    """Functions of a gate whose weights come to some bits."""
    mod = relax_module(lambda x: gate(x, form, act, dtype), (rows, K), dtype=dtype)
    return [one for one in functions(mod, bits) if "reshape" not in one.name]


def given(one: Scheduled, dtype: str, bits: int) -> dict[str, np.ndarray[Any, Any]]:
    """Rows, words with all their bits, scales of both signs, and biases."""
    rng = np.random.default_rng(7)
    found = {}
    for param in one.before.params[:-1]:
        shape = [*map(int, param.shape)]
        if str(param.dtype) == "uint32":
            found[param.name] = rng.integers(0, 1 << 32, shape, "uint32")
        else:
            size = 0.2 / (1 << bits) if shape[-1] == K // 32 else 1.0
            found[param.name] = (size * rng.standard_normal(shape)).astype(TYPES[dtype])
    return found


def wanted(arrays: list[Any], form: str, act: str, bits: int) -> np.ndarray[Any, Any]:
    """A gate by NumPy, in ``float64``."""
    x, *others = arrays
    kind, wide = x.dtype, x.astype("float64")
    count = 2 if form == "halves" else 4
    weights = [
        unpacked(words, scales, bits).astype(kind).astype("float64")
        for words, scales in zip(others[:count:2], others[1:count:2], strict=True)
    ]
    first, up = (wide @ one.T for one in np.concatenate(weights).reshape(2, N, K))
    if form == "biases":
        first, up = (
            one + bias.astype("float64") for one, bias in zip((first, up), others[4:], strict=True)
        )
    if form == "turned":  # Weights are given in the order in which products are read.
        first, up = up, first
    made = ACTIVATIONS[act][1](first) * up
    return made / 2 if form == "scaled" else made


def require_right(form: str, act: str, dtype: str, bits: int, rows: int) -> None:
    """Fail unless a gate is one kernel, and gives what NumPy gives."""
    (one,) = packed(form, act, dtype, bits, rows)
    assert one.name.startswith(("gated", "fused_gated"))
    assert "NT_matmul and NT_matmul" in one.choice.text
    arrays = given(one, dtype, bits)
    report = check(one, "packed weights", **arrays)
    assert len(report.launches) == 1
    (found,) = report.outputs.values()
    assert_near(found.reshape(rows, N), wanted([*arrays.values()], form, act, bits))


@pytest.mark.matrix
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("rows", [1, 4, 8, 16, 64])
@pytest.mark.parametrize("act", [*ACTIVATIONS])
def test_gates_are_one_kernel_and_right(bits: int, dtype: str, rows: int, act: str) -> None:
    require_right("two", act, dtype, bits, rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("rows", "bits"), [(1, 8), (9, 4)])
def test_both_orders_halves_of_a_weight_and_biases(form: str, rows: int, bits: int) -> None:
    require_right(form, "silu", "float16", bits, rows)


@pytest.mark.parametrize("rows", [1, 33])
def test_each_word_of_both_weights_is_read_once_by_16_bytes(rows: int) -> None:
    (one,) = packed("two", "silu", "float16", 4, rows)
    report = check(one, **given(one, "float16", 4))
    words = {str(p.name): p for p in one.before.params if str(p.dtype) == "uint32"}
    assert len(words) == 2
    regions = [r for _, block in blocks_of(one.after) for r in block.reads]
    assert {str(r.source.name) for r in regions} == {str(p.name) for p in one.before.params[:-1]}
    for name in words:
        found = [x for x in report.accesses if x.scope == "global" and x.buffer.endswith(name)]
        assert {access.vector_bytes for access in found} == {16}
        assert sum(x.sectors for x in found) >= N * K // 2 // 32


def _other_rows(x: Any, weight: Any) -> Any:
    """Products of other rows."""
    del weight
    half = emit(op.multiply(x, relax.const(0.5, "float16")))
    gate, up = (linear(one, drawn(256, K, seed=at)) for at, one in enumerate((x, half)))
    return op.multiply(emit(op.nn.silu(gate)), up)


def _one_plain(x: Any, weight: Any) -> Any:
    """One weight is a parameter, which nobody packs."""
    turned = emit(op.permute_dims(weight))
    up = emit(op.astype(emit(op.matmul(x, turned, out_dtype="float32")), "float16"))
    return op.multiply(emit(op.nn.silu(linear(x, drawn(256, K)))), up)


def _read_again(x: Any, weight: Any) -> Any:
    """Somebody else reads the gate."""
    del weight
    gate, up = (linear(x, drawn(256, K, seed=one)) for one in (0, 1))
    made = emit(op.multiply(emit(op.nn.silu(gate)), up))
    return relax.Tuple([made, gate])


@pytest.mark.parametrize("build", [_other_rows, _one_plain, _read_again])
@pytest.mark.parametrize("rows", [1, 4])
def test_other_products_stay_apart_and_right(build: Callable[..., Any], rows: int) -> None:
    found = functions(relax_module(build, (rows, K), (256, K)), 4)
    assert not any("gated" in one.name for one in found)
    products = [one for one in found if "matmul" in one.name]
    assert len(products) == 2
    for one in products:
        check(one)


def _two_products(same: bool, meet: bool, taken: int = 0) -> tirx.PrimFunc:
    """Products by weights that are unpacked, as TE has them."""
    xs = [te.placeholder((4, 128), "float16", name=f"x{at}") for at in range(2 - same)]
    held = [te.placeholder((64, 16), "uint32", name=f"words{at}") for at in range(2)]
    r = te.reduce_axis((0, 128), name="r")

    def product(at: int) -> te.Tensor:
        words, x = held[at], xs[-1 if at else 0]

        def digit(n: Any, k: Any) -> Any:
            found = words[n, k // 8] >> tirx.Cast("uint32", k % 8 * 4) & tirx.const(15, "uint32")
            less = tirx.const(8 + at * taken, "float16")
            return (tirx.Cast("float16", found) - less) * tirx.const(0.5, "float16")

        weight = te.compute((64, 128), digit, name=f"weight{at}")
        return te.compute(
            (4, 64),
            lambda i, j: te.sum(x[i, r].astype("float32") * weight[j, r].astype("float32"), axis=r),
            name=f"product{at}",
        )

    made = [product(0), product(1)]
    if meet:
        both = te.compute((4, 64), lambda i, j: made[0][i, j] * made[1][i, j], name="both")
        made = [both]
    return te.create_prim_func([*xs, *held, *made])


def test_products_that_do_not_meet_are_refused() -> None:
    product = read_unpacked(_two_products(same=True, meet=True))
    assert product is not None
    assert len(product.members) == 2
    assert few_rows(product.func, TARGET) is None
    for same, meet in ((True, False), (False, True)):
        with pytest.raises(ScheduleError, match="product0 and product1 are not of the same rows"):
            read_unpacked(_two_products(same, meet))


def test_weights_that_are_unpacked_otherwise_have_no_kernel_together() -> None:
    kernels = [tensor_rows(_two_products(True, True, taken), TARGET) for taken in (0, 1)]
    assert [one is None for one in kernels] == [False, True]


@pytest.mark.parametrize(("rows", "bits"), [(1, 4), (64, 4), (8, 8)])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_no_register_is_spilled(rows: int, bits: int, dtype: str) -> None:
    """By whatever compiler there is."""
    (one,) = packed("two", "gelu", dtype, bits, rows)
    built = build(one.after.with_attr("global_symbol", "main"), target=TARGET).mod
    try:
        code = compiled_code(built.imports[0].inspect_source(), "sm_90a")
    except TargetError as error:
        pytest.skip(str(error))
    assert code.spill_bytes == 0
