"""Register tiles, spread over threads by a layout."""
