"""Gathers and slices are fused as what takes elements from any place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from tests.models.cpu import by_cpu
from tests.models.running import check, fused, scheduled
from tests.programs.relaxed import emit, relax_module

ROWS, WIDTH = 50, 16


def table(seed: int) -> relax.Expr:
    rng = np.random.default_rng(seed)
    return relax.const(rng.normal(size=(ROWS, WIDTH)).astype("float32"))


def taken(indices: Any, at: int) -> relax.Expr:
    """Rows of a table by a column of indices."""
    column = op.take(indices, relax.const(np.int64(at)), 1, mode="fast")
    return op.take(table(at), op.astype(column, "int32"), 0, mode="fast")


#: What reads rows that are gathered: one kernel.
READERS: dict[str, Any] = {
    "side by side": lambda i: op.concat([taken(i, at) for at in range(5)], 1),
    "added": lambda i: op.add(op.add(taken(i, 0), taken(i, 1)), relax.const(np.float32(1))),
    "turned": lambda i: op.permute_dims(op.multiply(taken(i, 0), taken(i, 0)), [1, 0]),
}


@pytest.mark.parametrize("name", READERS)
def test_gathers_are_part_of_what_reads_them(name: str) -> None:
    mod = relax_module(READERS[name], ((24, 5), "int64"))
    lowered = fused(mod)
    (one,) = scheduled(lowered)
    assert not one.choice.fell_back
    indices = np.random.default_rng(0).integers(0, ROWS, (24, 5))
    want = by_cpu(mod, [indices])
    np.testing.assert_allclose(by_cpu(lowered, [indices])[0], want[0], 1e-6)
    check(one, x0=indices)


def test_elements_by_two_indices_are_read_in_place() -> None:
    """As pairs of features of a recommender, from a product of all with all."""
    places = np.tril_indices(6, -1)

    def build(x: Any) -> relax.Expr:
        first, second = (relax.const(one) for one in places)
        turned = op.permute_dims(x, [1, 2, 0])
        pairs = op.index_tensor(turned, relax.Tuple([first, second]))
        return op.permute_dims(pairs, [1, 0])

    mod = relax_module(build, (8, 6, 6), dtype="float32")
    (one,) = scheduled(fused(mod))
    check(one)


def test_a_norm_reads_what_is_gathered_before() -> None:
    """Rows that a norm reads several times are gathered once."""
    ones = relax.const(np.ones(WIDTH, "float32"))
    mod = relax_module(
        lambda i: op.nn.layer_norm(taken(i, 0), ones, ones, [-1]), ((24, 5), "int64")
    )
    gathered, norm = scheduled(fused(mod))
    check(gathered if "take" in gathered.name else norm, x0=np.full((24, 5), 7))
    assert {gathered.choice.rule, norm.choice.rule} == {"blocks", "rows"}


#: Elements by indices that are computed, as torch counts from either end.
COMPUTED: dict[str, Any] = {
    "of both": lambda x, i: (op.arange(24), i),
    "of one": lambda x, i: (i, i),
    "of a column": lambda x, i: (op.expand_dims(i, 1), op.arange(5)),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_indices_are_computed_in_the_kernel_that_uses_them(name: str) -> None:
    def build(x: Any, i: Any) -> relax.Expr:
        zero, size = relax.const(0, "int64"), relax.const(24, "int64")
        wrapped = emit(op.where(emit(op.less(i, zero)), emit(op.add(i, size)), i))
        places = [emit(one) for one in COMPUTED[name](x, emit(op.astype(wrapped, "int64")))]
        return op.index_tensor(x, relax.Tuple(places))

    mod = relax_module(build, ((24, 24), "float32"), ((24,), "int64"))
    lowered, indices = fused(mod), np.random.default_rng(0).integers(0, 24, 24)
    image = np.random.default_rng(1).normal(size=(24, 24)).astype("float32")
    want = by_cpu(mod, [image, indices])
    assert (by_cpu(lowered, [image, indices])[0] == want[0]).all()
    (one,) = scheduled(lowered)
    assert not one.choice.fell_back


@pytest.mark.parametrize("rows", [64, 512])
def test_rows_that_a_product_reads_are_no_unpacked_weights(rows: int) -> None:
    """More rows than the table has: what is gathered is larger than what it is made of."""
    weight = relax.const(np.random.default_rng(0).normal(size=(WIDTH, 32)).astype("float16"))

    def build(i: Any) -> relax.Expr:
        return op.matmul(op.take(op.astype(table(0), "float16"), i, 0, mode="fast"), weight)

    names = [one.name for one in scheduled(relax_module(build, ((rows,), "int64")))]
    assert len(names) == 2


def test_a_kernel_of_a_user_is_fused_with_nothing() -> None:
    @T.prim_func(private=True, s_tir=True)
    def gather(
        a: T.Buffer((64, 16), "float32"),
        i: T.Buffer((64,), "int64"),
        b: T.Buffer((64, 16), "float32"),
    ) -> None:  # type: ignore[valid-type]
        for row in T.thread_binding(64, "blockIdx.x"):
            for column in T.thread_binding(16, "threadIdx.x"):
                with T.sblock("B"):
                    r, c = T.axis.remap("SS", [row, column])
                    b[r, c] = a[i[r], c]

    builder = relax.BlockBuilder()
    a, i = (
        relax.Var(n, relax.TensorType(s, d))
        for n, s, d in (("a", (64, 16), "float32"), ("i", (64,), "int64"))
    )
    with builder.function("main", [a, i]):
        with builder.dataflow():
            kind = relax.TensorType((64, 16), "float32")
            made = relax.call_tir(builder.add_func(gather, "gather"), [a, i], kind)
            out = builder.emit_output(op.nn.relu(builder.emit(made)))
        builder.emit_func_output(out)
    names = {gv.name_hint for gv in fused(builder.get()).get_global_vars()}
    assert {"gather", "relu"} <= names
