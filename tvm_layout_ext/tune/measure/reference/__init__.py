"""What a candidate's output should be."""
