"""What CUDA computes by fast math, and loses digits or gives no number."""
