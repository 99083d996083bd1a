"""Which accesses of shared memory a barrier has to keep apart."""
