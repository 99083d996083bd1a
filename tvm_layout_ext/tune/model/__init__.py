"""What models rank candidates by: facts of a kernel, modelled cost and time."""
