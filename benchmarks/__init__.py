"""Side-by-side measurements on a real GPU; raw figures are kept in ``results/``."""
