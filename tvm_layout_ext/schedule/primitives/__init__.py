"""The primitives of TensorIR schedules, one a file.

Each is also a method of ``tvm.s_tir.Schedule``: its first parameter ``sch`` is the schedule. Blocks
are given by handle or by name.
"""
