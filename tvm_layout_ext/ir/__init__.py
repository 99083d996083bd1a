"""What everybody asks of TIR: expressions, statements, indices and their values."""
