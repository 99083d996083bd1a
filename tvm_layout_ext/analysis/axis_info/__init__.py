"""Contiguity, divisibility and constancy of index expressions: Triton's AxisInfo."""
