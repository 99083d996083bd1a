"""The explorer of swizzles: its JavaScript counts what ``layout`` counts, in node or a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tvm_layout_ext import layout as L
from tvm_layout_ext.layout.banks import wavefronts

DOCS = Path(__file__).parents[1] / "docs"
SCRIPT = (DOCS / "swizzle_explorer.js").read_text()
Evaluate = Callable[[str], Any]
SWIZZLES = [(1, 1, 1), (8, 2, 4), (4, 1, 8), (1, 1, 32), (16, 4, 2), (2, 2, 16)]
TILES = [(8, 64), (16, 32), (32, 32), (64, 8)]


@pytest.fixture(scope="module")
def evaluate(request: pytest.FixtureRequest) -> Evaluate:
    """The value of an expression after the script was run."""
    if node := shutil.which("node"):

        def run(expression: str) -> Any:
            code = f"{SCRIPT}\nconsole.log(JSON.stringify({expression}))"
            return json.loads(subprocess.check_output([node, "-e", code], text=True))

        return run
    page = request.getfixturevalue("browser").new_page()
    page.set_content("<p></p>")
    return lambda expression: page.evaluate(f"() => {{ {SCRIPT}\nreturn {expression}; }}")


def test_offsets_are_those_of_the_layout(evaluate: Evaluate) -> None:
    cases = list(product(SWIZZLES, TILES))
    expression = (
        f"{json.dumps(cases)}.map(([s, [rows, columns]]) => [...Array(rows * columns).keys()]"
        ".map(i => offset(s, columns, Math.floor(i / columns), i % columns)))"
    )
    for (swizzle, (rows, columns)), found in zip(cases, evaluate(expression), strict=True):
        linear = L.SwizzledSharedLayout(*swizzle, [1, 0]).to_linear([rows, columns])
        for element, at in enumerate(found):
            place = linear.apply(offset=at, block=0)
            assert (place["dim0"], place["dim1"]) == divmod(element, columns)


def test_wavefronts_are_those_of_the_layout(evaluate: Evaluate) -> None:
    """Rows and columns of every tile, of all widths that stay whole, stores and loads."""
    cases = [
        {"rows": rows, "columns": columns, "bits": bits, "swizzle": list(swizzle),
         "access": access, "bytes": wide}
        for (rows, columns), bits, swizzle, access, wide in product(
            TILES, (8, 16, 32, 64), SWIZZLES, ("along rows", "down a column", "ldmatrix"),
            (1, 2, 4, 8, 16),
        )
        if bits <= 8 * wide <= bits * columns
        and (swizzle[0] >= 8 * wide // bits or swizzle[2] == 1)
    ]  # fmt: skip
    assert len(cases) > 500
    conflicts = 0
    expression = f"{json.dumps(cases)}.map(request)"
    for case, found in zip(cases, evaluate(expression), strict=True):
        assert found["isWhole"]
        store = case["access"] == "along rows"
        assert found["wavefronts"] == wavefronts(found["addresses"], case["bytes"], store=store), (
            case
        )
        conflicts += found["wavefronts"] > found["least"]
    assert conflicts > 100


def test_broadcasts_and_joined_phases_are_counted_as_measured(evaluate: Evaluate) -> None:
    requests = [
        ([16 * (lane // 2) for lane in range(32)], 16),
        ([8 * (lane // 4) for lane in range(32)], 8),
        ([0] * 32, 4),
        ([lane * 128 if lane % 3 else -1 for lane in range(32)], 16),
        ([8 * ((lane & ~2) % 16) for lane in range(32)], 8),
    ]
    for store in (False, True):
        expression = (
            f"{json.dumps(requests)}.map(([a, b]) => wavefronts(a, b, {json.dumps(store)}))"
        )
        wanted = [wavefronts(addresses, wide, store=store) for addresses, wide in requests]
        assert evaluate(expression) == wanted


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_choosing_recolours_and_counts(browser: Any, tmp_path: Path, width: int) -> None:
    html = re.search(r"<div id=.*</script>", (DOCS / "swizzle_explorer.md").read_text(), re.DOTALL)
    assert html is not None
    (tmp_path / "swizzle_explorer.js").write_text(SCRIPT)
    (tmp_path / "page.html").write_text(f"<!DOCTYPE html><meta charset=utf-8>{html[0]}")
    page = browser.new_page(viewport={"width": width, "height": 800})
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "page.html").as_uri())
    told = page.locator("#explorer p")
    assert told.inner_text() == "4 wavefronts a request, the least is 4: 0 bank conflicts."
    assert page.locator("code").inner_text() == "sch.swizzle(block, (8, 2, 4))"
    assert (page.locator(".lane").count(), page.locator(".extra").count()) == (32, 0)
    before = page.locator("i").nth(17).evaluate("cell => cell.style.background")
    page.get_by_label("max phase").select_option("1")
    assert told.inner_text() == "16 wavefronts a request, the least is 4: 12 bank conflicts."
    assert page.locator(".extra").count() == 24
    assert page.locator("i").nth(17).evaluate("cell => cell.style.background") != before
    page.get_by_label("max phase").select_option("4")
    page.get_by_label("vec").select_option("2")
    assert told.inner_text().endswith("are not whole under vec = 2: take vec = 8 or more.")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert errors == []
    page.close()
