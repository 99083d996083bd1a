"""Batches of products read heads in place, and values turned."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import relax
from tvm.relax import op

import tvm_layout_ext as tlx
from tests.models.cpu import require_same
from tests.models.running import TARGET, check, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.gpu.tf32 import rounded_to_tf32
from tvm_layout_ext.models.moves.products_in_place import ProductsInPlace
from tvm_layout_ext.models.tf32 import CONV, KINDS, allow_tf32

WIDE = "float32"


def attention(heads: int, length: int) -> Any:
    """Scores and means of heads that lie side by side in one matrix."""

    def build(x: Any) -> Any:
        batch, rows, _ = map(int, x.ty.shape.values)
        parts = op.reshape(op.nn.relu(x), (batch, rows, 3, heads, length))

        def part(n: int, axes: Any) -> Any:
            own = op.squeeze(op.strided_slice(parts, [2], [n], [n + 1]), [2])
            return op.permute_dims(own, axes)

        scores = op.matmul(part(0, [0, 2, 1, 3]), part(1, [0, 2, 3, 1]))
        weights = op.nn.softmax(op.multiply(scores, relax.const(length**-0.5, WIDE)))
        return op.permute_dims(op.matmul(weights, part(2, [0, 2, 1, 3])), [0, 2, 1, 3])

    return build


def of_heads(rows: int, heads: int = 2, length: int = 32, batch: int = 2) -> tvm.IRModule:
    shape = (batch, rows, 3 * heads * length)
    return relax_module(attention(heads, length), shape, dtype=WIDE)


def after(mod: tvm.IRModule, kinds: Any = KINDS, target: Any = TARGET) -> tvm.IRModule:
    with target:
        return ProductsInPlace(kinds)(mod)


@pytest.mark.costly
@pytest.mark.parametrize(("rows", "values"), [(64, "warpgroups"), (72, "warpgroups"), (77, "")])
def test_queries_and_keys_are_read_in_place_and_values_turned(rows: int, values: str) -> None:
    found = scheduled(allow_tf32(of_heads(rows), KINDS))
    for one in found:
        check(one, change=rounded_to_tf32)
    products = [one for one in found if "matmul" in one.name]
    assert [one.choice.rule for one in products].count("warpgroups") == (2 if values else 1)
    moved = sorted(one.name for one in found if "transpose" in one.name)
    # Values, and means.
    assert len(moved) == 2


def test_others_stay_as_they_are() -> None:
    mod = of_heads(64)
    tvm.ir.assert_structural_equal(after(mod, [CONV]), mod)
    tvm.ir.assert_structural_equal(after(mod, target=tlx.cuda_target("sm_80")), mod)
    for shapes in (
        ((2, 64, 64), (64, 64)),  # A matrix for all
        ((64, 64), (64, 64)),
        ((2, 1, 64), (2, 64, 64)),  # A row
        ((2, 64, 30), (2, 30, 64)),  # Rows of 120 bytes
        (((2, 64, 64), "float16"), ((2, 64, 64), "float16")),
    ):
        one = relax_module(op.matmul, *shapes, dtype=WIDE)
        tvm.ir.assert_structural_equal(after(one), one)


def test_rows_that_no_copy_by_tma_takes_are_stored() -> None:
    """Heads of 30 elements are 120 bytes long."""
    scores, means = (str(after(of_heads(rows, length=30))) for rows in (77, 64))
    assert "NT_matmul" not in scores
    assert means.count("def NT_matmul") == 1


@given(st.data())
def test_any_permutation_slice_and_unit_dim_gives_the_same(data: st.DataObject) -> None:
    rank = data.draw(st.integers(3, 4))
    batch = data.draw(st.tuples(*[st.integers(1, 3)] * (rank - 2)))
    m, n = data.draw(st.tuples(st.integers(2, 5), st.integers(2, 5)))
    k = data.draw(st.sampled_from([4, 8, 3]))

    def source(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Any]:
        """A shape, and what makes one of these extents of it."""
        order = data.draw(st.permutations(range(rank)))
        inner = [shape[axis] for axis in order]
        at, many = data.draw(st.integers(0, rank)), data.draw(st.integers(1, 3))
        begin = data.draw(st.integers(0, many - 1))
        views = data.draw(st.booleans())

        def made(value: Any) -> Any:
            part = op.strided_slice(value, [at], [begin], [begin + 1])
            whole = op.reshape(part, inner) if views else op.squeeze(part, [at])
            return op.permute_dims(whole, [order.index(axis) for axis in range(rank)])

        return (*inner[:at], many, *inner[at:]), made

    (left, first), (right, second) = source((*batch, m, k)), source((*batch, k, n))
    mod = relax_module(lambda x, y: op.matmul(first(x), second(y)), left, right, dtype=WIDE)
    require_same(after(mod), mod, 1e-5)
