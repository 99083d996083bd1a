"""Products of symbolic sizes: one schedule for any number of tokens."""

from __future__ import annotations

from typing import Any

import pytest
from tvm import tirx

from benchmarks.model_zoo import block, mlp
from tests.models import running
from tests.models.random_programs import Program, module, op
from tests.models.running import check, fused, scheduled
from tvm_layout_ext.models.merged_rows import merge_rows
from tvm_layout_ext.models.whole_tiles import TILE, whole_tiles


def test_products_of_any_tokens_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [one for one in scheduled(block("n", 64, 2).module) if "matmul" in one.name]
    assert {one.choice.rule for one in found} == {"tensor cores"}
    # Scores have two symbolic sizes, and the product behind them a symbolic K.
    for size, some in ((1, found[:2]), (TILE, found[-1:]), (TILE + 6, found)):
        monkeypatch.setattr(running, "SIZE", size)
        for one in some:
            check(one)


def test_products_of_float32_are_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", TILE + 6)
    for one in scheduled(mlp("n", 20, 48, 12).module):
        assert one.choice.rule == "threads"
        check(one)


@pytest.mark.parametrize(("dtype", "rule"), [("float16", "tensor cores"), ("float32", "threads")])
def test_rows_of_several_dims_are_counted_through(
    monkeypatch: pytest.MonkeyPatch, dtype: str, rule: str
) -> None:
    def build(x: Any, w: Any, bias: Any, more: Any) -> Any:
        return op.nn.relu(op.add(op.add(op.matmul(x, w), bias), more))

    b, s = (tirx.Var(name, "int64") for name in "bs")
    # Two sizes of 1021, as which symbolic ones count, and the columns are no 32-bit index.
    shapes = [[b, s, 24], [24, 2080], [2080], [b, s, 2080]]
    (one,) = scheduled(module(Program([(shape, dtype) for shape in shapes], build)))
    assert one.choice.rule == rule
    for size in (1, 9):
        monkeypatch.setattr(running, "SIZE", size)
        check(one)


def test_rows_stay_apart_where_a_place_in_them_counts() -> None:
    b, s = (tirx.Var(name, "int64") for name in "bs")
    shapes = [[b, s, 24], [24, 16], [s, 16]]
    program = Program(
        [(shape, "float32") for shape in shapes], lambda x, w, p: op.add(op.matmul(x, w), p)
    )
    (product,) = (
        f for f in fused(module(program)).functions.values() if isinstance(f, tirx.PrimFunc)
    )
    assert merge_rows(product) is None


def test_calls_beyond_32_bits_are_refused() -> None:
    (one, *_) = (f for f in scheduled(mlp("n", 20, 48, 12).module) if "matmul" in f.name)
    assert "T.assume(n <=" in str(one.after)


def test_numbers_need_no_tiles() -> None:
    (one, *_) = (f for f in scheduled(mlp(8, 20, 48, 12).module) if "matmul" in f.name)
    assert isinstance(one.before, tirx.PrimFunc)
    assert whole_tiles(one.before) is None
