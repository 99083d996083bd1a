"""Operands of products are not repeated for each of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax
from tvm.relax import op

from tests.models.cpu import require_same
from tests.programs.relaxed import relax_module
from tvm_layout_ext.models.moves.drop_broadcasts import DropBroadcasts
from tvm_layout_ext.models.relax_values import cleaned

ROWS = (6, 5, 8)


def weight(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).normal(size=shape).astype("float32"))


#: A matrix or a batch of them, as the second operand of six matrices of five rows.
FREE: dict[str, Any] = {
    "repeated": lambda: op.broadcast_to(weight(8, 4), [6, 8, 4]),
    "of two dims": lambda: op.reshape(op.broadcast_to(weight(8, 4), [2, 3, 8, 4]), [6, 8, 4]),
    "its own shape": lambda: op.broadcast_to(weight(6, 8, 4), [6, 8, 4]),
}
#: What is no repetition, or of another matrix each.
KEPT: dict[str, Any] = {
    "of a row": lambda: op.broadcast_to(weight(1, 4), [8, 4]),
    "of a batch": lambda: op.reshape(op.broadcast_to(weight(3, 8, 4), [2, 3, 8, 4]), [6, 8, 4]),
    "another view": lambda: op.reshape(op.broadcast_to(weight(4, 8), [2, 3, 4, 8]), [6, 8, 4]),
}


@pytest.mark.parametrize("rows", [(1, 5, 8), (5, 8)])
def test_a_batch_that_the_other_operand_has_not_stays(rows: tuple[int, ...]) -> None:
    mod = relax_module(lambda x: op.matmul(x, FREE["of two dims"]()), rows, dtype="float32")
    require_same(cleaned(DropBroadcasts()(mod)), mod, 1e-6)


def test_of_two_matrices_that_are_repeated_one_stays() -> None:
    def build(x: Any) -> relax.Expr:
        other = op.reshape(op.broadcast_to(x, [2, 3, 5, 8]), [6, 5, 8])
        return op.matmul(other, FREE["of two dims"]())

    mod = relax_module(build, (5, 8), dtype="float32")
    require_same(cleaned(DropBroadcasts()(mod)), mod, 1e-6)


@pytest.mark.parametrize("name", [*FREE, *KEPT])
def test_a_matrix_is_read_as_it_is(name: str) -> None:
    make = FREE.get(name) or KEPT[name]
    mod = relax_module(lambda x: op.matmul(x, make()), ROWS, dtype="float32")
    after = cleaned(DropBroadcasts()(mod))
    assert ("broadcast_to" in after.script()) == (name in KEPT)
    require_same(after, mod, 1e-6)
