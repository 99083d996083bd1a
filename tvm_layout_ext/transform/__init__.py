"""TIR passes, one a file; :mod:`tvm_layout_ext.pipeline` says where each one runs."""

from __future__ import annotations

from .lower_warp_memory import LowerWarpMemoryFully
from .mark_annotated import MarkAnnotated
from .multi_stage_buffer import InjectMultiStageBuffer

__all__ = ["InjectMultiStageBuffer", "LowerWarpMemoryFully", "MarkAnnotated"]
