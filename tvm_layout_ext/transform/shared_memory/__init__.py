"""Layouts of shared buffers: swizzles and padding."""
