"""Layout algebra: which thread and register, or which bank, holds each element. No TVM here.

Two families of classes describe placements in the words of Triton's gluon:

* distributed layouts, over the registers of threads: :class:`BlockedLayout`, :class:`SliceLayout`,
  :class:`NVMMADistributedLayout`, :class:`DotOperandLayout`, :class:`DistributedLinearLayout`;
* shared layouts, over the offsets of shared memory: :class:`SwizzledSharedLayout`,
  :class:`PaddedSharedLayout`, :class:`NVMMASharedLayout`.

``to_linear(shape)`` turns each into a :class:`LinearLayout`, on which all questions are answered.
"""

from __future__ import annotations

from .base import CTALayout, Layout
from .distributed import (
    BlockedLayout,
    DistributedLinearLayout,
    DotOperandLayout,
    NVMMADistributedLayout,
    SliceLayout,
)
from .linear import LinearLayout
from .shared import NVMMASharedLayout, PaddedSharedLayout, SwizzledSharedLayout
from .text import parse

__all__ = [
    "BlockedLayout",
    "CTALayout",
    "DistributedLinearLayout",
    "DotOperandLayout",
    "Layout",
    "LinearLayout",
    "NVMMADistributedLayout",
    "NVMMASharedLayout",
    "PaddedSharedLayout",
    "SliceLayout",
    "SwizzledSharedLayout",
    "parse",
]
