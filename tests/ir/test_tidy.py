"""Indices of loads under conditions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given
from hypothesis import strategies as st
from tvm import sym, tirx

from tvm_layout_ext.ir.evaluate import evaluate
from tvm_layout_ext.ir.queries import loads_in, nodes_in
from tvm_layout_ext.ir.tidy import under_guards

QUOTIENTS = (tirx.FloorDiv, tirx.FloorMod)


def made(begin: int, end: int, extent: int, index: Any) -> tuple[Any, Any, Any]:
    """A choice by bounds of a variable, the variable, and an analyzer that knows its range."""
    i, b = tirx.Var("i", "int64"), tirx.decl_buffer((1 << 20,), "float32", "B", layout=None)
    analyzer = sym.Analyzer()
    analyzer.bind(i, tvm.ir.Range(0, extent))
    inside = tirx.all(i >= begin, i < end)
    return tirx.if_then_else(inside, b[index(i)], 0.0), i, analyzer


@given(st.integers(0, 5), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_where_a_condition_holds_indices_are_the_same(
    begin: int, size: int, by: int, other: int
) -> None:
    def index(i: Any) -> Any:
        at = i - begin
        return at // (size * by) * 7 + at % (by * other) // by * 3 + at // size % other + at % by

    choice, i, analyzer = made(begin, begin + size, begin + size + 4, index)
    found = under_guards(choice, analyzer)
    (old,), (new,) = (loads_in(one) for one in (choice, found))
    assert len(nodes_in(new, *QUOTIENTS)) <= len(nodes_in(old, *QUOTIENTS))
    for value in range(begin, begin + size):
        at = {i: np.int64(value)}
        assert evaluate(new.indices[0], at) == evaluate(old.indices[0], at)


def test_quotients_that_a_condition_makes_plain_go() -> None:
    choice, _, analyzer = made(1, 1569, 1569, lambda i: (i - 1) // 1568 + (i - 1) % 1568 // 196)
    (load,) = loads_in(under_guards(choice, analyzer))
    assert len(nodes_in(load, *QUOTIENTS)) == 1


@pytest.mark.parametrize("begin", [0, 1])
def test_without_a_condition_that_says_so_they_stay(begin: int) -> None:
    choice, _, analyzer = made(begin, 3000, 3000, lambda i: (i - 1) // 1568)
    assert np.size(nodes_in(under_guards(choice, analyzer), *QUOTIENTS)) == 1
