"""Mappings of moves whose rows begin inside vectors: shuffles and shifts."""
