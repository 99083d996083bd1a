"""The HTML picture in a real browser: it opens, tells what one points at, and can be read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext import layout as L

pytestmark = pytest.mark.browser

WIDTHS = pytest.mark.parametrize("width", [1280, 400])
BLOCKED = L.BlockedLayout([2, 2], [8, 4], [1, 2], [1, 0])
SPREAD = L.BlockedLayout([1, 1], [1, 32], [4, 1], [0, 1])
#: Layout, shape, options of the picture, and boxes that it has.
PICTURES: dict[str, tuple[L.Layout, list[int], dict[str, Any], int]] = {
    "blocked": (BLOCKED, [16, 16], {}, 256),
    "copies": (BLOCKED, [4, 4], {}, 16),
    "mma_v2": (L.NVMMADistributedLayout([2, 0], [1, 1], [16, 8]), [16, 8], {}, 128),
    "swizzled": (
        L.SwizzledSharedLayout(8, 1, 8, [1, 0]),
        [8, 64],
        {"view": "bank", "element_bits": 16},
        512,
    ),
    "padded": (L.PaddedSharedLayout([(32, 1)], [1, 0]), [32, 32], {"view": "bank"}, 1024),
    "256x256": (L.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]), [256, 256], {}, 16384),
    "256x256 apart": (SPREAD, [256, 256], {}, 65536),
}
Show = Callable[..., Any]


@cache
def html(name: str) -> str:
    layout, shape, options, _ = PICTURES[name]
    return layout.render(shape, kind="html", **options)


@pytest.fixture
def show(open_page: Any, tmp_path: Path) -> Show:
    def open_picture(name: str, width: int) -> Any:
        path = tmp_path / "picture.html"
        path.write_text(html(name))
        return open_page(path, width)

    return open_picture


def centre(box: dict[str, float]) -> tuple[float, float]:
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def point_at(page: Any, detail: str) -> Any:
    """Move the mouse onto the box whose detail begins so, scrolling to it first."""
    box = page.locator(f'i[title^="{detail}"]')
    box.scroll_into_view_if_needed()
    page.mouse.move(*centre(box.bounding_box()))
    return box


def shown_detail(page: Any) -> str:
    return str(page.locator("#detail").inner_text())


@WIDTHS
@pytest.mark.parametrize("name", [name for name in PICTURES if name != "256x256 apart"])
def test_labels_can_be_read(show: Show, name: str, width: int) -> None:
    """No label in view is cut, all are 10 pixels or more, with the contrast that WCAG AA wants."""
    page = show(name, width)
    cut, sizes, contrast = page.evaluate(
        """() => {
          const inside = box => { const at = box.getBoundingClientRect();
            return at.bottom > 0 && at.top < innerHeight && at.right > 0 && at.left < innerWidth; };
          const boxes = [...document.querySelectorAll(".row > *")].filter(inside);
          const light = colour => colour.match(/\\d+/g).slice(0, 3).map(Number)
            .map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
            .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
          const contrast = box => { const style = getComputedStyle(box);
            const [a, b] = [light(style.color), light(style.backgroundColor)].sort();
            return (b + 0.05) / (a + 0.05); };
          const written = boxes.filter(box => box.textContent);
          return [written.filter(b => b.scrollWidth > b.clientWidth).map(b => b.textContent),
            Math.min(...written.map(b => parseFloat(getComputedStyle(b).fontSize))),
            Math.min(...written.map(contrast))];
        }"""
    )
    assert cut == []
    assert sizes >= 10
    assert contrast >= 4.5


@WIDTHS
@pytest.mark.parametrize("name", ["blocked", "mma_v2"])
def test_pointing_at_an_element_tells_who_holds_it(show: Show, name: str, width: int) -> None:
    page = show(name, width)
    layout, shape, _, _ = PICTURES[name]
    held = layout.to_linear(shape).invert().apply(dim0=9, dim1=6)
    assert shown_detail(page) == "Point at an element."
    point_at(page, "(0, 0):")
    box = point_at(page, "(9, 6):")
    thread = 32 * held["warp"] + held["lane"]
    holder = f"thread {thread} (warp {held['warp']}, lane {held['lane']})"
    assert shown_detail(page) == f"(9, 6): {holder}, register {held['register']}"
    assert box.inner_text() == f"{thread}:{held['register']}"
    marked = page.locator("i.same").all()
    assert len(marked) == layout.to_linear(shape).in_sizes["register"]
    assert all(holder in other.get_attribute("title") for other in marked)
    page.mouse.move(*centre(page.locator("h1").bounding_box()))
    assert page.locator("i.same").count() == 0


@WIDTHS
@pytest.mark.parametrize("name", PICTURES)
def test_page_opens_and_long_details_do_not_move_the_picture(
    show: Show, name: str, width: int
) -> None:
    page = show(name, width)
    layout, shape, _, boxes = PICTURES[name]
    assert page.locator("i[data-owner]").count() == boxes
    assert page.locator("h1").inner_text() == f"{layout!r} on {'x'.join(map(str, shape))}"
    # Only the picture scrolls: title, legend and detail are all in view.
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.scrollHeight") == 700
    header = page.locator("header").bounding_box()
    assert header["width"] == width
    assert header["height"] < 700 / 3
    before = page.locator("#picture").bounding_box()
    point_at(page, "(0, 0):")
    assert page.locator("#picture").bounding_box() == before
    assert page.locator("#detail").evaluate("box => box.scrollHeight <= box.clientHeight")


@WIDTHS
@pytest.mark.parametrize("name", ["256x256", "256x256 apart"])
def test_names_and_detail_stay_in_view_far_from_the_corner(
    show: Show, name: str, width: int
) -> None:
    page = show(name, width)
    at = point_at(page, "(200, 196):").bounding_box()
    assert shown_detail(page).startswith("(200, 196):")
    assert page.locator("#detail").bounding_box()["x"] >= 0
    column = at["x"] + 4, page.locator(".names").bounding_box()["y"] + 9
    seen = "([x, y]) => document.elementFromPoint(x, y).textContent"
    assert page.evaluate(seen, column) == "196"
    assert page.evaluate(seen, (20, at["y"] + 9)) == "200"
