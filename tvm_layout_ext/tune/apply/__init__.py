"""What was tuned, put to use: compile with it, run it again, tune a whole module."""
