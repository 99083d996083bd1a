"""TIR passes, one a file; :mod:`tvm_layout_ext.pipeline` says where each one runs."""

from __future__ import annotations

from .align_offsets import AlignOffsets
from .auto_coalesce import AutoCoalesce
from .check_assumptions import CheckAssumptions
from .check_host_stages import CheckHostStages
from .check_tile_bounds import CheckTileBounds
from .check_vectors import CheckVectors
from .combine_conversions import CombineLayoutConversions
from .eviction_policy import KeepEvictionPolicy, LowerEvictionPolicy
from .expose_pointers import ExposePointers
from .fill_padded_rows import FillPaddedRows
from .fuse_dot_add import FuseDotAdd
from .gather_launch_notes import GatherLaunchNotes
from .guard_reductions import GuardReductions
from .guard_vectors import GuardVectors
from .launch_bounds import SetLaunchBounds
from .launch_clusters import LaunchClusters
from .lower_async_copy import LowerAsyncCopy
from .lower_fragment import LowerFragment
from .lower_shared_results import LowerSharedResults
from .lower_tensor_core import LowerTensorCore
from .lower_warp_memory import LowerWarpMemoryFully
from .mark_annotated import MarkAnnotated
from .multi_stage_buffer import InjectMultiStageBuffer
from .narrow_vectors import NarrowVectors
from .overlap_launches import OverlapLaunches
from .pack_bytes import PackBytes
from .plan_sync import PlanSync
from .prefetch_registers import PrefetchSharedToRegister
from .rasterize_blocks import RasterizeBlocks
from .rename_operands import RenameOperands
from .reversed_indices import HideReversedIndices, ShowReversedIndices
from .shift_vectors import ShiftVectors
from .straighten_indices import StraightenIndices
from .swizzle_shared import SwizzleSharedMemory
from .type_matrix_loads import TypeMatrixLoads

__all__ = [
    "AlignOffsets",
    "AutoCoalesce",
    "CheckAssumptions",
    "CheckHostStages",
    "CheckTileBounds",
    "CheckVectors",
    "CombineLayoutConversions",
    "ExposePointers",
    "FillPaddedRows",
    "FuseDotAdd",
    "GatherLaunchNotes",
    "GuardReductions",
    "GuardVectors",
    "HideReversedIndices",
    "InjectMultiStageBuffer",
    "KeepEvictionPolicy",
    "LaunchClusters",
    "LowerAsyncCopy",
    "LowerEvictionPolicy",
    "LowerFragment",
    "LowerSharedResults",
    "LowerTensorCore",
    "LowerWarpMemoryFully",
    "MarkAnnotated",
    "NarrowVectors",
    "OverlapLaunches",
    "PackBytes",
    "PlanSync",
    "PrefetchSharedToRegister",
    "RasterizeBlocks",
    "RenameOperands",
    "SetLaunchBounds",
    "ShiftVectors",
    "ShowReversedIndices",
    "StraightenIndices",
    "SwizzleSharedMemory",
    "TypeMatrixLoads",
]
