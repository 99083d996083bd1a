"""Products of float32 keep all bits, by threads, of any layout, batch and size."""

from __future__ import annotations

from typing import Any

import pytest
import tvm
from tvm import relax, tirx

from tests.models.running import TARGET, check, scheduled
from tvm_layout_ext.build import lower
from tvm_layout_ext.ir.queries import nodes_in, size_of
from tvm_layout_ext.schedules import matmul
from tvm_layout_ext.schedules.matmul import TILES, fitting

Shape = tuple[int, ...]


def product(a: Shape, b: Shape, turned: bool = False, turned_a: bool = False) -> tvm.IRModule:
    """A product, a bias and a ReLU; operands may be stored the other way round."""
    params = [relax.Var(n, relax.TensorType(s, "float32")) for n, s in (("a", a), ("b", b))]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            left, right = params
            if turned_a:
                left = builder.emit(relax.op.permute_dims(left, [*range(len(a) - 2), -1, -2]))
            if turned:
                right = builder.emit(relax.op.permute_dims(right, [*range(len(b) - 2), -1, -2]))
            out = builder.emit(relax.op.matmul(left, right))
            out = builder.emit_output(relax.op.nn.relu(out))
        builder.emit_func_output(out)
    return builder.get()


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
        assert one.choice.rule == "threads", one.choice.text
        check(one)


@pytest.mark.parametrize("rows", [40, None])
def test_half_a_tile_of_columns_keeps_no_sums_of_other_threads(rows: int | None) -> None:
    """As of a prompt of any length by heads of 32: each thread had 1568 sums, or unknown many."""
    mod = product((3, rows or tirx.Var("n", "int64"), 20), (3, 20, 32))
    (one,) = (one for one in scheduled(mod) if "matmul" in one.name)
    assert one.choice.rule == "threads", one.choice.text
    assert "x32," in one.choice.text
    func = lower(one.after.with_attr("global_symbol", "main"), target=TARGET)["main"]
    buffers = [node.buffer for node in nodes_in(func.body, tirx.AllocBuffer)]
    counts = [size_of(own.shape[0]) for own in buffers if own.scope() == "local"]
    assert max(counts) <= 32
    check(one)


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
