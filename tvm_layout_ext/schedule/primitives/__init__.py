"""The primitives of TensorIR schedules, one a file."""
