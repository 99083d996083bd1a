"""Kernels as shared libraries that need only the CUDA driver."""
