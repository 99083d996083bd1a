"""Threads that run together: batches of warps, divergence, launches that overlap."""
