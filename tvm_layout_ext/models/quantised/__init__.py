"""Products by quantised weights, which are never stored as anything wider."""
