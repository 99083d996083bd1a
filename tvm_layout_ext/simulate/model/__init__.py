"""What all parts share: types and values, buffers, and the threads that run together."""
