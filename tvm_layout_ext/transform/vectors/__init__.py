"""Vectors kept whole, shifted into place, or narrowed to their alignment."""
