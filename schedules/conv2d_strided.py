"""Convolution that takes every second pixel along rows and columns: :mod:`.conv2d` of stride 2."""

from __future__ import annotations

from tvm_layout_ext.schedules.conv2d import operator

OPERATOR = operator("conv2d_strided", stride=2)
