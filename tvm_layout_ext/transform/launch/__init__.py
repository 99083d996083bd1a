"""What a launch carries: bounds, clusters, block order, overlap, checks on the host."""
