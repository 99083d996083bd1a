"""TIR passes, one a file; :mod:`tvm_layout_ext.pipeline` says where each one runs."""

from __future__ import annotations

from .attention.lower_attention import LowerAttention
from .auto_coalesce import AutoCoalesce
from .bytes.pack_argmax import PackArgmax
from .bytes.read_words import ReadWords
from .conversions.combine_conversions import CombineLayoutConversions
from .fragments.lower_fragment import LowerFragment
from .fuse_rows import FuseRows
from .hopper.lower_warpgroups import LowerWarpgroups
from .launch.check_assumptions import CheckAssumptions
from .launch.check_host_stages import CheckHostStages
from .launch.divide_places import DividePlaces
from .launch.eviction_policy import AttachEvictionPolicy, LowerEvictionPolicy
from .launch.hoist_grid_annotations import HoistGridAnnotations
from .launch.launch_bounds import SetLaunchBounds
from .launch.launch_clusters import LaunchClusters
from .launch.overlap_launches import OverlapLaunches
from .launch.rasterize_blocks import RasterizeBlocks
from .mark_annotated import MarkAnnotated
from .pipeline.lower_async_copy import LowerAsyncCopy
from .pipeline.multi_stage_buffer import InjectMultiStageBuffer
from .prefetch.prefetch_registers import PrefetchSharedToRegister
from .shared_memory.fill_padded_rows import FillPaddedRows
from .shared_memory.swizzle_shared import SwizzleSharedMemory
from .sync.plan_sync import PlanSync
from .tensor_core.lower_tensor_core import LowerTensorCore
from .turn_tiles import TurnTiles
from .tvm_fixes.align_offsets import AlignOffsets
from .tvm_fixes.check_thread_reductions import CheckThreadReductions
from .tvm_fixes.check_tile_bounds import CheckTileBounds
from .tvm_fixes.check_vectors import CheckVectors
from .tvm_fixes.endless_arrays import EndlessArrays
from .tvm_fixes.expose_pointers import ExposePointers
from .tvm_fixes.fast_math.reduce_angles import ReduceAngles
from .tvm_fixes.fast_math.write_out_powers import WriteOutPowers
from .tvm_fixes.fast_math.write_out_sigmoids import WriteOutSigmoids
from .tvm_fixes.guard_reductions import GuardReductions
from .tvm_fixes.join_comparisons import JoinComparisons
from .tvm_fixes.lower_shared_results import LowerSharedResults
from .tvm_fixes.lower_warp_memory import LowerWarpMemoryFully
from .tvm_fixes.pack_bytes import PackBytes
from .tvm_fixes.rename_operands import RenameOperands
from .tvm_fixes.reversed_indices import ProtectReversedIndices, RestoreReversedIndices
from .tvm_fixes.scope_binds import ScopeBinds
from .tvm_fixes.straighten_indices import StraightenIndices
from .tvm_fixes.type_matrix_loads import TypeMatrixLoads
from .tvm_fixes.widen_reductions import WidenReductions
from .tvm_fixes.widen_small_buffers import WidenSmallBuffers
from .tvm_fixes.write_out_starts import WriteOutStarts
from .vectors.choose_by_scalars import ChooseByScalars
from .vectors.guard_vectors import GuardVectors
from .vectors.narrow_vectors import NarrowVectors
from .vectors.part_vectors import PartVectors
from .vectors.shift_vectors import ShiftVectors

__all__ = [
    "AlignOffsets",
    "AttachEvictionPolicy",
    "AutoCoalesce",
    "CheckAssumptions",
    "CheckHostStages",
    "CheckThreadReductions",
    "CheckTileBounds",
    "CheckVectors",
    "ChooseByScalars",
    "CombineLayoutConversions",
    "DividePlaces",
    "EndlessArrays",
    "ExposePointers",
    "FillPaddedRows",
    "FuseRows",
    "GatherLaunchNotes",
    "GuardReductions",
    "GuardVectors",
    "HideReversedIndices",
    "HoistGridAnnotations",
    "InjectMultiStageBuffer",
    "JoinComparisons",
    "KeepEvictionPolicy",
    "LaunchClusters",
    "LowerAsyncCopy",
    "LowerAttention",
    "LowerEvictionPolicy",
    "LowerFragment",
    "LowerSharedResults",
    "LowerTensorCore",
    "LowerWarpMemoryFully",
    "LowerWarpgroups",
    "MarkAnnotated",
    "NarrowVectors",
    "OverlapLaunches",
    "PackArgmax",
    "PackBytes",
    "PartVectors",
    "PlanSync",
    "PrefetchSharedToRegister",
    "ProtectReversedIndices",
    "RasterizeBlocks",
    "ReadWords",
    "ReduceAngles",
    "RenameOperands",
    "RestoreReversedIndices",
    "ScopeBinds",
    "SetLaunchBounds",
    "ShiftVectors",
    "ShowReversedIndices",
    "StraightenIndices",
    "SwizzleSharedMemory",
    "TurnTiles",
    "TypeMatrixLoads",
    "WidenReductions",
    "WidenSmallBuffers",
    "WriteOutPowers",
    "WriteOutSigmoids",
    "WriteOutStarts",
]

# Names until the next release.
GatherLaunchNotes = HoistGridAnnotations
HideReversedIndices = ProtectReversedIndices
KeepEvictionPolicy = AttachEvictionPolicy
ShowReversedIndices = RestoreReversedIndices
