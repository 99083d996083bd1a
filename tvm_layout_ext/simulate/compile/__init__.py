"""Device functions become Python closures over NumPy arrays."""
