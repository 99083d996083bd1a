"""Candidates to libraries that any process can load."""
