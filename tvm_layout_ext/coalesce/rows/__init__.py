"""Chains of blocks over the same rows in one kernel: read, planned, and written."""
