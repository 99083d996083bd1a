"""The engine of ``auto_coalesce``: how the loops of a block are mapped to threads."""
