"""The search over configurations."""
