"""Accesses of memory, asynchronous copies, and their counters."""
