"""What is special about images: layouts, norms that follow convolutions, and sums of windows."""
