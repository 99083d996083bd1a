"""Layout algebra: which thread and register, or which bank, holds each element. No TVM here.

Two families of classes describe placements in the words of Triton's gluon:

* distributed layouts, over the registers of threads: :class:`BlockedLayout`, :class:`SliceLayout`,
  :class:`NVMMADistributedLayout`, :class:`DotOperandLayout`, :class:`DistributedLinearLayout`;
* shared layouts, over the offsets of shared memory: :class:`SwizzledSharedLayout`,
  :class:`PaddedSharedLayout`, :class:`NVMMASharedLayout`.

``to_linear(shape)`` turns each into a :class:`LinearLayout`, on which all questions are answered:
:func:`bank_conflicts` of a pair, the :func:`optimal_swizzle` between two layouts, the
:func:`movement` that a conversion needs, the shared layouts of tensor-core operands.
"""

from __future__ import annotations

from inspect import isfunction as _isfunction

from ..errors import LayoutError as _LayoutError
from ..signatures import typed as _typed
from .banks import bank_conflicts, vector_width, wavefronts
from .base import CTALayout, Layout
from .conversion.convert import Movement, movement, scratch_bytes
from .distributed import BlockedLayout, DistributedLinearLayout, SliceLayout
from .linear import LinearLayout
from .operands import shared_for_mma_sync, shared_for_wgmma, wgmma_order
from .shared import NVMMASharedLayout, PaddedSharedLayout, SwizzledSharedLayout
from .swizzle import optimal_swizzle, swizzle_conflicts
from .tensor_core import DotOperandLayout, NVMMADistributedLayout
from .text import parse

__all__ = [
    "BlockedLayout",
    "CTALayout",
    "DistributedLinearLayout",
    "DotOperandLayout",
    "Layout",
    "LinearLayout",
    "Movement",
    "NVMMADistributedLayout",
    "NVMMASharedLayout",
    "PaddedSharedLayout",
    "SliceLayout",
    "SwizzledSharedLayout",
    "bank_conflicts",
    "movement",
    "optimal_swizzle",
    "parse",
    "scratch_bytes",
    "shared_for_mma_sync",
    "shared_for_wgmma",
    "swizzle_conflicts",
    "vector_width",
    "wavefronts",
    "wgmma_order",
]

globals().update(
    {
        name: _typed(it, bool, error=_LayoutError)
        for name, it in vars().copy().items()
        if name in __all__ and _isfunction(it)
    }
)
