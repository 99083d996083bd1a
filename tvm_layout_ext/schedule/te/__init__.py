"""TVM's classic TE schedule on TensorIR: recorded at the call, applied late."""
