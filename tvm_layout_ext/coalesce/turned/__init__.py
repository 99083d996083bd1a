"""Tiles of rows that begin anywhere, turned through shared memory by aligned vectors."""
