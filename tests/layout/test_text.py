"""The text form of every layout parses back to an equal layout."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import strategies
from tvm_layout_ext import layout as L
from tvm_layout_ext.errors import LayoutError
from tvm_layout_ext.layout.text import LAYOUT_CLASSES


@given(st.one_of(strategies.distributed(), strategies.shared(), strategies.linear_layouts()))
def test_text_parses_back(layout: Any) -> None:
    assert L.parse(repr(layout)) == layout


@given(strategies.blocked(), st.data())
def test_distributed_linear_text_parses_back(layout: L.Layout, data: st.DataObject) -> None:
    linear = layout.to_linear(data.draw(strategies.shapes(layout.rank)))
    whole = L.DistributedLinearLayout.from_linear(linear)

    assert L.parse(repr(whole)) == whole


def test_fields_go_by_position_or_name_and_the_full_name_serves() -> None:
    layout = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])

    assert L.parse("Blocked([2,2], [8,4], [1,2], [1,0])") == layout
    assert L.parse("BlockedLayout((2,2), (8,4), order=(1,0), warps_per_cta=(1,2))") == layout


def test_a_cluster_shows_only_where_there_is_one() -> None:
    assert repr(L.SwizzledSharedLayout(8, 1, 8, [1, 0])) == (
        "SwizzledShared(vec=8, per_phase=1, max_phase=8, order=[1, 0])"
    )
    assert "ctas_per_cga=[2]" in repr(L.PaddedSharedLayout([(4, 1)], [0], [2], [1], [0]))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not of the form"),
        ("Blocked", "not of the form"),
        ("Blocked(", "not of the form"),
        ("1 + 1", "not of the form"),
        ("(" * 5000, "not of the form"),
        ("Circular([1])", "There is no layout 'Circular'"),
        ("os.system('true')", "'true'|no layout"),
        ("Blocked(__import__('os'))", "no value|no layout"),
        ("Blocked([1])", "cannot be made of"),
        ("Blocked(size=[1])", "cannot be made of"),
        ("Blocked(**{})", "uses"),
        ("Blocked([1.5], [32], [1], [0])", "no value of a layout's field"),
        ("Linear({a: 1}, {x: 2})", "takes a dictionary of vectors"),
        ("Linear([1])", "Linear takes"),
        ("Slice(0, [1, 2])", "no distributed layout"),
        ("Slice(dim=0, dim=1, parent=None)", "gives the field 'dim' more than once"),
        ("Linear({a: [[1]], a: [[0]]}, {x: 2})", "gives the dim 'a' more than once"),
        ("Linear({a: [[1]]}, {x: 2, x: 4})", "gives the dim 'x' more than once"),
        *((one, "must be a str") for one in (None, 5, b"Blocked([1], [32], [1], [0])")),
    ],
)
def test_bad_text_is_one_sentence(text: Any, sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        L.parse(text)


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 40), st.just("x"))
JUNK = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3), max_leaves=6)


@given(st.sampled_from(sorted(LAYOUT_CLASSES)), st.lists(JUNK, max_size=8))
def test_junk_is_refused_or_legal_but_never_a_crash(name: str, fields: list[Any]) -> None:
    text = f"{name}({', '.join(map(repr, fields))})"
    with contextlib.suppress(LayoutError):
        layout = L.parse(text)
        assert L.parse(repr(layout)) == layout
