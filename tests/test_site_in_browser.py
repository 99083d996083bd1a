"""The built site in a real browser: no page scrolls sideways on a narrow screen."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = pytest.importorskip("mkdocs.config", reason="mkdocs is not installed")
    from mkdocs.commands.build import build

    written, built = (tmp_path_factory.mktemp(name) for name in ("pages", "site"))
    made: Any = runpy.run_path(str(ROOT / "docs" / "_site.py"))
    for name, text in made["pages"](lambda path: f"{path.stem} was run").items():
        (written / name).write_text(text)
    options = {"docs_dir": str(written), "site_dir": str(built), "strict": True}
    build(config.load_config(str(ROOT / "mkdocs.yml"), **options))
    return built


def test_no_page_is_wider_than_a_phone(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    files = sorted(site.glob("*.html"))
    assert len(files) > 20
    wide = {}
    for file in files:
        page.goto(file.as_uri())
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > 400:
            wide[file.name] = width
    page.close()
    assert wide == {}
