"""Sums and functions of 16 bits in 32; of whole tensors in steps; sums of groups and norms."""
