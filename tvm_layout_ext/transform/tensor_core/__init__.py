"""Tensor-core instructions in the place of loop nests."""
