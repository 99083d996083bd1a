"""Operators, their knobs and legal configurations."""
