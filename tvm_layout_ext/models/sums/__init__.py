"""Sums and functions of 16 bits in 32, and of whole tensors in steps."""
