"""Passes by which elements of a byte or two cost fewer instructions."""
