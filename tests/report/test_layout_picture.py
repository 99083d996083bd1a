"""Pictures of layouts: what they say, and that they are well formed."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.programs import strategies
from tvm_layout_ext import layout as L
from tvm_layout_ext.errors import LayoutError

BLOCKED = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])
PADDED = L.PaddedSharedLayout([(32, 1)], [1, 0])
SWIZZLED = L.SwizzledSharedLayout(8, 1, 8, [1, 0])
SVG = "{http://www.w3.org/2000/svg}"


def rows(text: str) -> list[list[str]]:
    """The cells of every row of a text picture with one grid."""
    return [line.split()[1:] for line in text.splitlines()[3:]]


FIRST = "0:0 0:1 1:0 1:1 2:0 2:1 3:0 3:1 32:0 32:1 33:0 33:1 34:0 34:1 35:0 35:1"


@pytest.mark.parametrize(
    ("layout", "shape", "options", "row", "cells"),
    [
        (BLOCKED, [16, 16], {}, 0, FIRST),
        (BLOCKED, [4, 4], {}, 0, "0:0+ 0:1+ 1:0+ 1:1+"),
        (BLOCKED, [16, 16], {"view": "hardware"}, 33, "0,10 0,11 1,10 1,11"),
        (PADDED, [4, 32], {"view": "bank"}, 1, ". 1,0 1,1"),
        (PADDED, [4, 32], {"view": "bank"}, 2, "1,31 . 2,0"),
        (PADDED, [4, 32], {}, 1, "1:33 2:34"),
        (SWIZZLED, [2, 64], {"element_bits": 16}, 1, "4:72 4:73"),
    ],
    ids=["blocked", "copies", "hardware", "gap", "next gap", "padded", "swizzled"],
)
def test_text_of_a_row(
    layout: L.Layout, shape: list[int], options: dict[str, Any], row: int, cells: str
) -> None:
    first = cells.split()
    assert rows(layout.render(shape, **options))[row][: len(first)] == first


@pytest.mark.parametrize("option", ["kind", "view"])
@pytest.mark.parametrize("value", [[], {}, np.array([1, 2]), None])
def test_an_option_that_cannot_be_hashed_is_refused(option: str, value: object) -> None:
    with pytest.raises(LayoutError, match=f"{option} is .*; it must be one of"):
        BLOCKED.render([16, 16], **{option: value})


def test_a_picture_of_more_gaps_than_elements_is_refused() -> None:
    """2^18 words after each of 64 words are 64 MiB of empty cells."""
    layout = L.PaddedSharedLayout([(1, 1 << 18)], [1, 0])
    with pytest.raises(LayoutError, match="A picture of 16515136 places is too large"):
        layout.render([8, 8], view="bank")
    assert "63,0" not in layout.render([8, 8])


def test_other_ranks_are_folded_or_drawn_plane_by_plane() -> None:
    vector = rows(L.SliceLayout(1, BLOCKED).render([64]))
    assert len(rows(BLOCKED.render([16, 16], view="hardware"))) == 64
    planes = L.BlockedLayout([1, 1, 1], [2, 4, 4], [1, 1, 1], [2, 1, 0]).render([2, 4, 4])
    assert [len(row) for row in vector] == [32, 32]
    assert planes.count("Elements [") == 2


def test_cluster_names_the_block() -> None:
    cluster = {"ctas_per_cga": [2, 2], "cta_split_num": [2, 2], "cta_order": [1, 0]}
    layout = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0], **cluster)
    assert rows(layout.render([32, 32]))[16][16] == "B3:0:0"
    assert layout.render([32, 32], view="hardware").count("block") == 4


class _Page(HTMLParser):
    """Collects the boxes of a page, and sees that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.titles: list[str | None] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in ("meta", "link"):
            self.open.append(tag)
        if "data-owner" in given:
            self.titles.append(given["title"])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize(
    ("view", "box"),
    [
        ("tensor", "(2, 9): thread 36 (warp 1, lane 4), register 1"),
        ("hardware", None),
        ("bank", None),
    ],
)
def test_page_and_svg_are_well_formed_and_tell_the_same(view: str, box: str | None) -> None:
    layout = BLOCKED if view == "tensor" else SWIZZLED
    svg, html = (
        layout.render([16, 16], kind=kind, view=view, element_bits=16) for kind in ("svg", "html")
    )
    titles = [one.findtext(f"{SVG}title") for one in ET.fromstring(svg).findall(f"{SVG}g")]
    assert _Page(html).titles == titles
    assert len(titles) == 256
    assert all(titles)
    assert box is None or box in titles


def test_large_pictures_join_what_a_thread_holds_in_a_row() -> None:
    layout = L.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    root = ET.fromstring(layout.render([256, 256], kind="svg"))
    boxes = root.findall(f"{SVG}g")
    assert len(boxes) == 256 * 256 // 8
    labels = [box.find(f"{SVG}text").text for box in boxes]  # type: ignore[union-attr]
    assert labels[0] == "0:0-7"
    assert float(root.get("width", "0")) < 6000


@given(st.data())
def test_every_element_appears_once_in_the_tensor_view(data: st.DataObject) -> None:
    layout = data.draw(strategies.blocked(rank=2))
    shape = data.draw(st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=2, max_size=2))
    grid = rows(layout.render(shape))
    assert [len(row) for row in grid] == [shape[1]] * shape[0]
    linear = layout.to_linear(shape)
    for (i, j), label in np.ndenumerate(np.array(grid)):
        block, thread, register = re.fullmatch(r"(?:B(\d+):)?(\d+):(\d+)\+?", label).groups()  # type: ignore[union-attr]
        at = linear.apply(
            register=int(register),
            lane=int(thread) % 32,
            warp=int(thread) // 32,
            block=int(block or 0),
        )
        assert at == {"dim0": i, "dim1": j}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "png"}, "one of text, svg, html"),
        ({"view": "side"}, "one of tensor, hardware, bank"),
        ({"view": "bank"}, "has no banks|no banks"),
        ({"element_bits": 12}, "element_bits is 12"),
        ({"shape": [1024, 1024]}, "too large"),
        ({"shape": [16]}, "lays out 2 dims"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(LayoutError, match=sentence):
        BLOCKED.render(**{"shape": [16, 16], **options})  # type: ignore[arg-type]
