"""Mappings of blocks whose loads and store want other orders: through shared memory."""
