"""Products of float32 keep all bits, by threads, of any layout, batch and size."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import tirx
from tvm.relax import op

from tests.models.running import TARGET, check, only, scheduled
from tests.programs.relaxed import relax_module
from tvm_layout_ext.build import lower
from tvm_layout_ext.ir.queries import nodes_in, size_of
from tvm_layout_ext.schedules import matmul
from tvm_layout_ext.schedules.matmul import TILES, fitting

Shape = tuple[Any, ...]


def product(a: Shape, b: Shape, turned: bool = False, turned_a: bool = False) -> tvm.IRModule:
    """A product, a bias and a ReLU; operands may be stored the other way round."""

    def turn(value: Any, rank: int) -> Any:
        return op.permute_dims(value, [*range(rank - 2), -1, -2])

    def build(left: Any, right: Any) -> Any:
        left = turn(left, len(a)) if turned_a else left
        right = turn(right, len(b)) if turned else right
        return op.nn.relu(op.matmul(left, right))

    return relax_module(build, a, b, dtype="float32")


@pytest.mark.parametrize(
    ("a", "b", "turns"),
    [
        ((40, 36), (36, 28), {}),
        ((40, 33), (25, 33), {"turned": True}),
        ((3, 17, 20), (3, 20, 9), {}),
        ((2, 19, 24), (24, 30), {}),
        ((2, 3, 8, 20), (2, 1, 20, 12), {}),
        ((36, 40), (36, 64), {"turned_a": True}),
    ],
)
def test_a_product_is_right(a: Shape, b: Shape, turns: dict[str, Any]) -> None:
    found = [one for one in scheduled(product(a, b, **turns)) if "matmul" in one.name]
    for one in found:
        check(one, "threads")


@pytest.mark.parametrize("rows", [40, "n"])
def test_half_a_tile_of_columns_keeps_no_sums_of_other_threads(rows: Any) -> None:
    """As of a prompt of any length by heads of 32: each thread had 1568 sums, or unknown many."""
    one = only(product((3, rows, 20), (3, 20, 32)), "matmul")
    assert "x32," in one.choice.text
    func = lower(one.after.with_attr("global_symbol", "main"), target=TARGET)["main"]
    buffers = [node.buffer for node in nodes_in(func.body, tirx.AllocBuffer)]
    counts = [size_of(own.shape[0]) for own in buffers if own.scope() == "local"]
    assert max(counts) <= 32
    check(one, "threads")


@pytest.mark.matrix
@pytest.mark.parametrize(("at", "slices"), [(at, 1 + at % 2) for at in range(len(TILES))])
def test_every_tile_is_right(at: int, slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul, "TILES", TILES[at : at + 1])
    monkeypatch.setattr(matmul, "SLICES", (slices,))
    monkeypatch.setattr(matmul, "_LEAST_TERMS", 16)
    (one,) = scheduled(product((70, 50), (50, 44)))
    rows, columns, *_ = TILES[at][0]
    assert f"tiles of {rows}x{columns}, {slices} slices" in one.choice.text
    check(one)


def test_no_multiprocessors_are_left_idle() -> None:
    found = fitting((512, 784, 4096))
    # 28 tiles of 128x128 would leave a hundred multiprocessors idle.
    blocks = -(-512 // found["tile_m"]) * -(-784 // found["tile_n"]) * found["split_k"]
    assert blocks >= 100
