"""Gathers and slices are fused as what takes elements from any place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.models.cpu import by_cpu
from tests.models.running import check, fused, scheduled
from tests.programs.relaxed import relax_module

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
    for one in scheduled(fused(mod)):
        assert not one.choice.fell_back
