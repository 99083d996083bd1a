"""Repairs of TVM 0.27's own lowering, each with a test of the defect."""
