"""Functions of symbolic sizes: variables for them, whole tiles of them, and what lies behind."""
