"""Hooks of mkdocs: docstrings mark names by Sphinx's roles, which the site does not show."""

from __future__ import annotations

import re
from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Take the roles out of a page."""
    return re.sub(r":(?:func|class|mod|meth|attr|data):(?=<)", "", html)
