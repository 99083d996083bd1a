"""Modules of PyTorch, called with torch's tensors: what is compiled, and what a call needs."""
