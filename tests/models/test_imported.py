"""What ``torch.export`` writes otherwise than Relax's modules is fused as theirs is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op
from tvm.target import Target

from benchmarks.relax_numbers import error_of, outputs
from tests.models.running import array_of, check, fused, scheduled

HALF = "float16"


def linear(behind: Any, batch: Any = 2, rows: int = 24, dtype: str = HALF) -> tvm.IRModule:
    """A linear as ``run_decompositions`` writes it, and what is computed from it."""
    builder = relax.BlockBuilder()
    kinds = {"x": (batch, rows, 64), "w": (128, 64), "b": (128,), "y": (batch, rows, 128)}
    x, w, b, y = (relax.Var(n, relax.TensorType(one, dtype)) for n, one in kinds.items())
    with builder.function("main", [x, w, b, y]):
        with builder.dataflow():
            flat = builder.emit(op.reshape(x, (batch * rows, 64)))
            turned = builder.emit(op.permute_dims(w, [1, 0]))
            product = builder.emit(op.add(b, builder.emit(op.matmul(flat, turned))))
            whole = builder.emit(op.reshape(product, (batch, rows, 128)))
            out = builder.emit_output(behind(builder, whole, y))
        builder.emit_func_output(out)
    return builder.get()


def gelu(builder: Any, value: Any, _: Any) -> Any:
    """GELU of rows in one dim, as a decomposition may leave it between two linears."""
    flat = builder.emit(op.reshape(value, (48, 128)))
    return op.reshape(builder.emit(op.nn.gelu(flat)), value.ty.shape)


def residual(_: Any, value: Any, y: Any) -> Any:
    """What a block adds."""
    return op.add(y, value)


def twice(builder: Any, value: Any, y: Any) -> Any:
    """A value that two read: it is stored."""
    return op.multiply(builder.emit(op.add(y, value)), builder.emit(op.nn.relu(value)))


def scaled_by_rows(builder: Any, value: Any, _: Any) -> Any:
    """A factor a row: its place is in a dim that the reshape joins."""
    dtype = str(value.ty.dtype)
    factors = relax.const(np.linspace(1, 2, 24, dtype=dtype).reshape(24, 1), dtype)
    return op.multiply(value, builder.emit(op.abs(factors)))


def by_cpu(mod: tvm.IRModule, arrays: list[Any]) -> list[Any]:
    """What TVM's CPU code gives."""
    return outputs(mod, Target("llvm"), "default", arrays)


@pytest.mark.parametrize(
    ("behind", "names"),
    [(gelu, ("gelu",)), (residual, ("add",)), (twice, ()), (scaled_by_rows, ("multiply",))],
)
def test_what_follows_a_linear_ends_its_kernel(behind: Any, names: tuple[str, ...]) -> None:
    # LLVM takes seconds for float16.
    exact, rng = linear(behind, dtype="float32"), np.random.default_rng(0)
    arrays = [array_of(one.ty, rng) for one in exact["main"].params]
    assert error_of(by_cpu(fused(exact), arrays), by_cpu(exact, arrays)) <= 1e-4
    (product,) = (one for one in scheduled(linear(behind)) if "matmul" in one.name)
    assert product.choice.rule == "warpgroups"
    assert all(name in product.name for name in names), product.name
    if behind is residual:
        check(product)


def test_a_symbolic_batch_is_hoisted_over() -> None:
    names = [one.name for one in scheduled(linear(residual, tvm.tirx.Var("n", "int64")))]
    (product,) = (one for one in names if "matmul" in one)
    assert "add" in product.partition("cast")[2].partition("add")[2], product


@pytest.mark.parametrize(
    ("left", "right", "kept"),
    [
        ((3, 8, 16), (16, 8), (16, 8)),
        ((1, 8, 16), (16, 8), (3, 16, 8)),
        ((3, 8, 16), (1, 16, 8), (1, 16, 8)),
    ],
)
def test_weights_are_not_repeated(left: Any, right: Any, kept: Any) -> None:
    builder = relax.BlockBuilder()
    x, w = (relax.Var(n, relax.TensorType(one, HALF)) for n, one in (("x", left), ("w", right)))
    with builder.function("main", [x, w]):
        with builder.dataflow():
            wide = builder.emit(op.broadcast_to(w, (3, 16, 8)))
            out = builder.emit_output(op.matmul(x, wide))
        builder.emit_func_output(out)
    mod = builder.get()
    functions = [one.after for one in scheduled(mod)]
    (product,) = (one for one in functions if len(one.params) == 3)
    assert tuple(map(int, product.params[1].shape)) == kept
    arrays = [array_of(one.ty, np.random.default_rng(1)) for one in mod["main"].params]
    assert error_of(by_cpu(fused(mod), arrays), by_cpu(mod, arrays)) <= 1e-2
