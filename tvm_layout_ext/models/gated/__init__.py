"""Gated MLPs: two products of the same rows, and one value of both, in one kernel."""
