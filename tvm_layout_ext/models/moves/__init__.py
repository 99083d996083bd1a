"""What only moves elements goes where it costs nothing, or less."""
