"""The primitives of TensorIR schedules, one a file; each is also a method of the schedule."""
