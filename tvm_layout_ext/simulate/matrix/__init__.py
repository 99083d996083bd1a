"""Warp-level matrix instructions: shapes, registers, products, memory."""
