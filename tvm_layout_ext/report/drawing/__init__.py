"""Drawing: grids of boxes as SVG and as HTML pages, and curves as SVG and PNG."""

from __future__ import annotations

from .boxes import as_svg
from .extras import MissingExtraError
from .grid import Cell, Grid
from .page import as_page

__all__ = ["Cell", "Grid", "MissingExtraError", "as_page", "as_svg"]
