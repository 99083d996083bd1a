"""Images with channels first to channels last: a batch of transposes of C by H * W."""

from __future__ import annotations

from tvm_layout_ext.schedules.permute import permutation

OPERATOR = permutation("nchw_to_nhwc", ("N", "C", "H", "W"), (0, 2, 3, 1))
