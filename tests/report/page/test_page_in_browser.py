"""The report in a real browser: it opens, sorts, tells details, and fits a narrow screen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.report.page.logs import DEFAULT, modelled, transposes
from tests.tune.helpers import make_record
from tvm_layout_ext.report.page import render_page, workloads

pytestmark = pytest.mark.browser

WIDTHS = pytest.mark.parametrize("width", [1600, 400])
ALL_WIDTHS = pytest.mark.parametrize("width", [1600, 1280, 1100, 700, 400])
Show = Callable[[int], Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of three workloads, one of them with a kernel explained and drawn."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    explained = make_record(config=DEFAULT)
    late = replace(
        modelled(2, 3.0), status="error", error_class="PtxasError", error_text="Too many registers."
    )
    shown = workloads([*transposes(), modelled(0, 5.0), modelled(1, 4.0), late], kernels=False)
    out.write_text(render_page("a/long/path/of/a/log", [*workloads([explained]), *shown]))
    return out


@pytest.fixture
def show(open_page: Any, path: Path) -> Show:
    return partial(open_page, path)


def column(page: Any, name: str) -> list[str]:
    """The texts of a column of the measured transpose's trials, from above."""
    table = page.locator("table.sortable", has=page.get_by_text("median us"))
    names = table.locator("th").all_inner_texts()
    index = [text.split(" ↕")[0].strip() for text in names].index(name)
    return [row.locator("td").nth(index).inner_text() for row in table.locator("tbody tr").all()]


def click(page: Any, name: str) -> Any:
    head = page.locator("table.sortable", has=page.get_by_text("median us")).locator("th")
    chosen = head.filter(has_text=name).first
    chosen.locator("button").click()
    return chosen


@ALL_WIDTHS
def test_page_opens_and_nothing_sticks_out(show: Show, width: int) -> None:
    page = show(width)
    assert page.locator("h1").inner_text() == "Tuning report: a/long/path/of/a/log"
    assert page.locator("section").count() == 3
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate(
        """width => [...document.querySelectorAll("section *")]
            .filter(box => !box.closest(".wide") && box.getBoundingClientRect().right > width + 1)
            .map(box => box.outerHTML.slice(0, 80))""",
        width,
    )
    assert outside == []
    # Wide tables scroll inside their own box.
    inside = page.get_by_label("trials of transpose 256x256 float32")
    assert inside.evaluate("box => getComputedStyle(box).overflowX") == "auto"
    if width == 400:
        assert inside.evaluate("box => box.scrollWidth > box.clientWidth")


@ALL_WIDTHS
def test_no_word_of_a_chart_is_cut_or_tiny(show: Show, width: int) -> None:
    page = show(width)
    words, cut, smallest = page.evaluate(
        """() => {
          const words = [...document.querySelectorAll("figure svg text")];
          const cut = words.filter(word => { const a = word.getBoundingClientRect(),
            b = word.ownerSVGElement.getBoundingClientRect();
            return a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom; });
          return [words.length, cut.map(word => word.textContent),
            Math.min(...words.map(word => word.getBoundingClientRect().height))];
        }"""
    )
    assert words > 40
    assert cut == []
    assert smallest >= 9.9


@ALL_WIDTHS
def test_no_labels_overlap_and_no_picture_is_there_twice(show: Show, width: int) -> None:
    page = show(width)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    clashes, twice, drawn = page.evaluate(
        """() => {
          const clashes = [], seen = new Set(), twice = [];
          const pictures = [...document.querySelectorAll("section svg")];
          for (const svg of pictures) {
            if (seen.has(svg.outerHTML)) twice.push(svg.outerHTML.slice(0, 80));
            seen.add(svg.outerHTML);
            const words = [...svg.querySelectorAll("text")].filter(one => one.textContent.trim())
              .map(one => [one.textContent, one.getBoundingClientRect()]);
            words.forEach(([name, a], n) => words.slice(n + 1).forEach(([other, b]) => {
              const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
              const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
              if (wide > 2 && high > 3) clashes.push(`${name} | ${other}`);
            }));
          }
          return [clashes, twice, pictures.length];
        }"""
    )
    assert drawn > 3
    assert clashes == []
    assert twice == []


@WIDTHS
def test_a_heading_sorts_by_number_both_ways_and_failures_stay_last(show: Show, width: int) -> None:
    page = show(width)
    assert column(page, "median us") == ["8.00", "9.00", "30.50", "105.0", "120.0", ""]
    head = click(page, "median us")
    assert head.get_attribute("aria-sort") == "ascending"
    click(page, "median us")
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "median us") == ["120.0", "105.0", "30.50", "9.00", "8.00", ""]
    click(page, "trial")
    assert head.get_attribute("aria-sort") is None
    assert column(page, "trial") == ["0", "1", "2", "3", "4", "5"]
    assert column(page, "median us") == ["9.00", "120.0", "", "30.50", "8.00", "105.0"]


@WIDTHS
def test_pointing_at_marks_and_cells_tells_details(show: Show, width: int) -> None:
    page = show(width)
    tip = page.locator("#tip")
    assert tip.is_hidden()
    page.locator("g.failed").first.hover()
    assert tip.inner_text() == ("trial 2 failed, WrongResultError: It is <b>wrong</b> at (0, 0).")
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.locator("g.point").first.hover()
    assert "of the memory roof" in tip.inner_text() or "nearest roof" in tip.inner_text()
    page.locator("section").nth(1).locator("tbody tr.winner td").first.hover()
    assert tip.inner_text().startswith("number in its run; 0 is the default schedule; trial 4, ")
    page.locator("h1").hover()
    assert tip.is_hidden()


def test_the_table_of_all_sorts_filters_and_opens_a_workload(show: Show) -> None:
    page = show(1280)
    rows = page.locator("#overview tbody tr")
    assert rows.count() == 3
    page.locator("#filter").fill("gemm 128")
    assert [row.is_visible() for row in rows.all()] == [False, False, True]
    page.locator("#filter").fill("")
    page.locator("#overview th", has_text="score").locator("button").click()
    assert rows.first.locator("td").first.inner_text() == "transpose 256x256 float32"
    page.evaluate("document.querySelectorAll('section > details').forEach(d => d.open = false)")
    page.locator("#overview a", has_text="gemm").click()
    opened = page.locator("section > details[open]")
    opened.wait_for()  # the browser tells of the new address a moment later
    assert opened.count() == 1
    assert opened.locator("h2").inner_text() == "gemm 128x128x128 float16"


def test_the_page_is_dark_where_its_reader_is(show: Show) -> None:
    page = show(1280)
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(255, 255, 255)", "rgb(22, 25, 29)"]


def test_knobs_are_drawn_and_choose_trials(show: Show) -> None:
    page = show(1280)
    box = page.get_by_label("knobs of transpose 256x256 float32").last
    box.scroll_into_view_if_needed()
    section = page.locator("section", has=box)
    # It is drawn when it is first seen.
    box.locator("path.best").wait_for(state="attached")
    assert box.locator("path").count() == 6
    assert box.locator("path.failed").count() == box.locator("path.best").count() == 1
    assert box.locator("text.name").all_text_contents() == ["align_offset", "score"]
    cut = box.evaluate(
        """box => [...box.querySelectorAll("text")].filter(word =>
          word.getBoundingClientRect().right > box.getBoundingClientRect().right).length"""
    )
    assert cut == 0
    rows = section.locator("tr[data-at]")
    value = box.get_by_role("button").filter(has_text="3").first
    value.focus()
    page.keyboard.press("Enter")
    assert value.get_attribute("aria-pressed") == "true"
    assert [row.is_visible() for row in rows.all()].count(True) == 1
    told = section.locator(".chosen")
    assert told.inner_text().startswith("1 of 6 trials chosen; the best is trial 3, 30.50 us.")
    told.get_by_role("button").click()
    assert [row.is_visible() for row in rows.all()].count(True) == 6
    assert told.inner_text() == ""
    # Drawn along the axis of scores, from its top to its middle: the fast ones.
    place = box.locator("svg > rect").last.bounding_box()
    x = place["x"] + place["width"] / 2
    page.mouse.move(x, place["y"] + 4)
    page.mouse.down()
    page.mouse.move(x, place["y"] + 60)
    page.mouse.up()
    assert told.inner_text().startswith("2 of 6 trials chosen; the best is trial 4, 8.00 us.")


def test_a_command_is_copied(show: Show) -> None:
    page = show(1280)
    button = page.locator("button.copy").first
    button.click()
    assert button.inner_text() == "copied"
    assert page.evaluate("getSelection().toString()").startswith("tvm-layout replay a/long/path")
