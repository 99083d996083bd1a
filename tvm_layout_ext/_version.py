"""The package's version, readable without importing TVM."""

__version__ = "0.1.0"
