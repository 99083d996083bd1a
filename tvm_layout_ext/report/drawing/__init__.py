"""Drawing: grids of boxes as SVG and as HTML pages, and curves as SVG and PNG."""
