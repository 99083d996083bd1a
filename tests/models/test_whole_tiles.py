"""Products of symbolic sizes: one schedule for any number of tokens."""

from __future__ import annotations

import pytest
from tvm import tirx

from benchmarks.model_zoo import block, mlp
from tests.models import running
from tests.models.running import check, scheduled
from tvm_layout_ext.models.whole_tiles import TILE, whole_tiles


def test_products_of_any_tokens_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [one for one in scheduled(block("n", 64, 2).module) if "matmul" in one.name]
    assert {one.choice.rule for one in found} == {"tensor cores"}
    # Scores have two symbolic sizes, and the product behind them a symbolic K.
    for size in (1, TILE, TILE + 6):
        monkeypatch.setattr(running, "SIZE", size)
        for one in found:
            check(one)


def test_products_of_float32_are_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "SIZE", TILE + 6)
    for one in scheduled(mlp("n", 20, 48, 12).module):
        assert one.choice.rule == "threads"
        check(one)


def test_calls_beyond_32_bits_are_refused() -> None:
    (one, *_) = (f for f in scheduled(mlp("n", 20, 48, 12).module) if "matmul" in f.name)
    assert "T.assume(n <=" in str(one.after)


def test_numbers_need_no_tiles() -> None:
    (one, *_) = (f for f in scheduled(mlp(8, 20, 48, 12).module) if "matmul" in f.name)
    assert isinstance(one.before, tirx.PrimFunc)
    assert whole_tiles(one.before) is None
