"""Products of few rows, whose weights go from memory to registers as they lie."""
