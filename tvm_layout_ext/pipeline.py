"""Put our passes into TVM's lowering, and take them out again.

TVM's s_tir pipeline stays the owner of its passes: ours asks it for the list and inserts a few
among them. ``install`` registers the result both as pipeline ``layout_ext`` and in place of
``s_tir``, so that plain ``tvm.compile(mod, target="cuda")`` runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.tirx import compilation_pipeline

from . import transform
from ._compat import (
    pass_name,
    register_errors,
    remember_checks,
    stock_finalizers,
    stock_passes,
)
from .ir import lowered_once
from .ir.annotations import LOWERED
from .transform.base import all_but, allocates_nothing, is_marked
from .transform.launch.check_host_stages import is_marked_for_cuda, refuse_unbound

NAME = "layout_ext"
_REPLACED = "s_tir"
#: Our passes, by the TVM pass before which each runs, in this order.
_BEFORE: dict[str, tuple[Callable[[], Any], ...]] = {
    "s_tir.CanonicalizeLoop": (
        transform.MarkAnnotated,
        transform.LowerWarpgroups,
        transform.LowerAttention,
        transform.LowerTensorCore,
        transform.AutoCoalesce,
        transform.FuseRows,
        transform.TurnTiles,
        transform.ShiftVectors,
        transform.CheckHostStages,
        transform.CheckAssumptions,
    ),
    # Reductions over threads still say what they sum.
    "s_tir.LowerCrossThreadReduction": (transform.GuardReductions, transform.LowerSharedResults),
    "s_tir.LowerInitBlock": (transform.CheckThreadReductions,),
    # The pass that cuts arrays to what is used.
    "s_tir.CompactBufferAllocation": (transform.EndlessArrays,),
    # Afterwards only the outermost loop of a kernel still has all that was noted at it.
    "s_tir.UnifyThreadBinding": (transform.HoistGridAnnotations,),
    # Block iterators have become loops; nothing has taken the indices apart yet.
    # Reductions over threads have their registers.
    "s_tir.StmtSimplify": (transform.PackArgmax, transform.StraightenIndices),
    # Paddings are in the strides by now, indices count from the tile's corner.
    "s_tir.InjectPermutedLayout": (
        transform.CombineLayoutConversions,
        transform.LowerFragment,
        transform.SwizzleSharedMemory,
        transform.NarrowVectors,
        transform.FillPaddedRows,
    ),
    # The last point at which loops, blocks and 2-D indices are all still there.
    "s_tir.InjectSoftwarePipeline": (
        transform.CheckTileBounds,
        transform.InjectMultiStageBuffer,
        transform.PrefetchSharedToRegister,
        transform.RasterizeBlocks,
        transform.SetLaunchBounds,
        transform.LaunchClusters,
        transform.AttachEvictionPolicy,
    ),
    # The pass that mistakes them.
    "tirx.FlattenBuffer": (transform.ProtectReversedIndices,),
    # Indices are flat by now; what follows plans memory and barriers.
    "tirx.BF16ComputeLegalize": (
        transform.RestoreReversedIndices,
        transform.ExposePointers,
        transform.WidenSmallBuffers,
    ),
    # Indices are flat by now, and vectors are still loops.
    "tirx.VectorizeLoop": (
        transform.WriteOutPowers,
        transform.ReduceAngles,
        transform.AlignOffsets,
        transform.LowerAsyncCopy,
        transform.GuardVectors,
        transform.PartVectors,
    ),
    # Vectors are there, and nothing has been folded into other types yet.
    "s_tir.InjectVirtualThread": (transform.CheckVectors, transform.ChooseByScalars),
    # After it, threadIdx.x hides behind let variables.
    "tirx.CommonSubexprElim": (
        transform.DividePlaces,
        transform.LowerWarpMemoryFully,
        transform.RenameOperands,
        transform.WriteOutSigmoids,
        transform.PackBytes,
        transform.ReadWords,
        transform.JoinComparisons,
    ),
    # The pass that fails over them.
    "s_tir.MergeSharedMemoryAllocations": (transform.ScopeBinds,),
    # The pass that makes shuffles of words alone.
    "s_tir.LowerThreadAllreduce": (transform.WidenReductions,),
    # Shared buffers have their final places, reductions over threads their own barriers. Whatever
    # looks at stores has done so after PlanSync.
    "tirx.SplitHostDevice": (
        transform.WriteOutStarts,
        transform.PlanSync,
        transform.LowerEvictionPolicy,
        transform.TypeMatrixLoads,
    ),
    # Kernels are functions of their own, and the host's launches still show.
    "tirx.MakePackedAPI": (transform.OverlapLaunches,),
}
#: Passes of TVM, and the functions that they are not run on.
_LEFT_OUT: dict[str, Callable[[Any], bool]] = {
    # Plans barriers before it is known which buffers share memory.
    "s_tir.ThreadSync": is_marked,
    # Takes up to 1.6 s for an unrolled kernel of warpgroups, whose buffers have their sizes.
    "s_tir.CompactBufferAllocation": allocates_nothing,
}
#: ``lower`` stops here, as TVM's ``tvm.lower`` did: what follows is device code generation.
_FIRST_BUILD_PASS = "tirx.FP8ComputeLegalize"

stock_pipeline = s_tir.pipeline.default_s_tir_pipeline


def _with_ours(passes: Iterable[Any]) -> list[Any]:
    ours: list[Any] = []
    for stock in passes:
        ours.extend(make() for make in _BEFORE.get(pass_name(stock), ()))
        leaves = _LEFT_OUT.get(pass_name(stock))
        ours.append(stock if leaves is None else all_but(stock, leaves))
    return ours


def lowering_passes() -> tuple[list[Any], list[Any]]:
    """List all passes in order, split where ``lower`` ends and building begins."""
    passes = _with_ours(stock_passes(stock_pipeline))
    cut = next(i for i, p in enumerate(passes) if pass_name(p) == _FIRST_BUILD_PASS)
    return passes[:cut], passes[cut:]


def pass_table() -> str:
    """Tell our passes in the order in which they run, as a table of Markdown.

    ARCHITECTURE.md holds it. The last column is the first sentence of each docstring.
    """
    rows = ["| pass | before TVM's | what it does |", "|---|---|---|"]
    for stock in map(pass_name, stock_passes(stock_pipeline)):
        for ours in _BEFORE.get(stock, ()):
            rows.append(f"| `{ours.__name__}` | {stock.rpartition('.')[2]} | {_does(ours)} |")
    return "\n".join(rows)


def _does(factory: Callable[[], Any]) -> str:
    first = " ".join(str(factory.__doc__).partition("\n\n")[0].split())
    text = first.removeprefix("Create the pass that ").removesuffix(".")
    return re.sub(r":\w+:`\.?(\w+)`", r"`\1`", text).replace("``", "`")


def run_first_half(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower blocks to flat loops; functions that are already lowered pass through."""
    first, _ = lowering_passes()
    done = {gv: made for gv, f in mod.functions.items() if (made := _lowered(f)) is not None}
    if not done:
        return tvm.ir.transform.Sequential(first)(mod)
    rest = {gv: f for gv, f in mod.functions.items() if gv not in done}
    if not rest:
        return tvm.IRModule(done, attrs=mod.attrs)
    lowered = tvm.ir.transform.Sequential(first)(tvm.IRModule(rest, attrs=mod.attrs))
    lowered.update(tvm.IRModule(done))
    return lowered


def _lowered(func: Any) -> tirx.PrimFunc | None:
    if not isinstance(func, tirx.PrimFunc):
        return None
    return func if func.attrs.get(LOWERED, None) is not None else lowered_once.take(func)


def layout_ext_pipeline() -> tuple[Any, Any, Any]:
    """Create the TIR pipeline ``layout_ext``: TVM's s_tir pipeline with our passes in it."""

    @tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.pipeline")
    def _pipeline(mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        _, second = lowering_passes()
        mod = run_first_half(mod)
        for gv, func in mod.functions.items():
            if is_marked_for_cuda(func):
                refuse_unbound(gv.name_hint, func)
        return tvm.ir.transform.Sequential(second)(mod)

    return _pipeline, *stock_finalizers(stock_pipeline)


def install() -> None:
    """Register the passes and the pipeline with TVM; a second call changes nothing."""
    register_errors()
    remember_checks()
    compilation_pipeline.register_tir_pipeline(NAME, layout_ext_pipeline)
    compilation_pipeline.register_tir_pipeline(_REPLACED, layout_ext_pipeline)
    for name in transform.__all__:
        factory = getattr(transform, name)
        tvm.register_global_func(f"tvm_layout_ext.transform.{name}", factory, override=True)
        for module in (tvm.transform, s_tir.transform):
            setattr(module, name, factory)


def uninstall() -> None:
    """Give TVM its own pipeline and namespaces back."""
    compilation_pipeline.PIPELINE_MAP.pop(NAME, None)
    compilation_pipeline.register_tir_pipeline(_REPLACED, stock_pipeline)
    for name in transform.__all__:
        tvm_global = f"tvm_layout_ext.transform.{name}"
        if tvm.get_global_func(tvm_global, allow_missing=True) is not None:
            tvm_ffi.remove_global_func(tvm_global)
        for module in (tvm.transform, s_tir.transform):
            if hasattr(module, name):
                delattr(module, name)
