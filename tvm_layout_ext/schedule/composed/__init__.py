"""Primitives that compose others, and return the loops to go on with."""
