"""What tests of pages in a browser share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

OpenPage = Callable[[Path, int], Any]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and charts are kept on disk: each test has a folder of its own."""
    monkeypatch.setenv("TVM_LAYOUT_EXT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open a file at a width.

    Whatever the browser complains of, or asks a network for, fails the test in the end.
    """
    complaints: list[str] = []
    pages = []

    def asked(url: str) -> None:
        if not url.startswith(("file:", "data:")):
            complaints.append(url)

    def opened(path: Path, width: int) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 700})
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("requestfailed", lambda request: complaints.append(request.url))
        page.on("request", lambda request: asked(request.url))
        page.goto(path.as_uri())
        return page

    yield opened
    for page in pages:
        page.close()
    assert complaints == []
