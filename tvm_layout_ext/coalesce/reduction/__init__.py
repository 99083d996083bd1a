"""Mappings of reductions: along rows, across rows, in slabs."""
