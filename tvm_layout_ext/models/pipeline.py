"""``relax_pipeline``: TVM's Relax pipeline for CUDA with this package's schedules in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.backend.cuda import pipeline as stock
from tvm.target import Target

from ..checks import takes_module
from ..errors import ScheduleError
from ..ir.diagnostics import reason
from ..target import resolve
from ..transform.launch.in_sequence import InSequence
from ..tune.apply.apply import as_module, fuse_transposes
from .attention.band import MasksAsBands
from .attention.compose import ComposeAttention
from .attention.gather import GatherAttention
from .attention.sinks import SinksApart
from .attention.write_out import WriteOutAttention
from .batch_norm import BatchNormsAsScales
from .convolutions.channels_last import ChannelsLast
from .convolutions.pad_channels import PadChannels
from .convolutions.pixels_as_rows import PixelsAsRows
from .convolutions.rows_as_images import RowsAsImages
from .convolutions.space_to_depth import SpaceToDepth
from .convolutions.transposed import TransposedConvolutions
from .convolutions.wide_groups import WideGroups
from .default_schedule import DefaultSchedule
from .fold_constants import FoldConstants
from .gated.gather import GatedProducts
from .imported.fuse_writes import FuseWrites
from .imported.gather_rows import GatherRows
from .imported.hoist_reshapes import HoistReshapes
from .imported.merge_products import MergeProducts
from .moves.drop_broadcasts import DropBroadcasts
from .moves.patterns import FusionPatterns
from .moves.products_in_place import ProductsInPlace
from .moves.sink_permutations import SinkPermutations
from .moves.slices import SplitsAsSlices
from .moves.slices_first import SlicesFirst
from .moves.views import PermutationsAsViews
from .moves.weights_as_rows import WeightsAsRows
from .paged.cache import PagedCache
from .quantised.fuse_weights import FuseWeights
from .quantised.pack_weights import PackWeights
from .scheduled.answers import side_by_side
from .sums.round_operands import RoundOperands
from .sums.sums_in_steps import SumsInSteps
from .sums.widen_functions import legalize_ops
from .sums.widen_sums import WidenSums
from .tf32 import MATMUL, allowed, rounded

_log = logging.getLogger("tvm_layout_ext")


def relax_pipeline(
    target: str | Target | None = None, schedule: DefaultSchedule | None = None
) -> tvm.transform.Pass:
    """Make the pipeline of a target, for ``tvm.compile(mod, target, relax_pipeline=...)``.

    Operators are lowered and fused, each transpose with the product that reads it, so that weights
    stored N x K stay so. :class:`DefaultSchedule` schedules every function, and the rest is TVM's:
    planned memory, and CUDA graphs where its option ``relax.backend.use_cuda_graph`` asks for them.

    Parameters
    ----------
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.
    schedule : DefaultSchedule, optional
        What schedules functions, where its records or its ``choices`` are wanted.

    Examples
    --------
    >>> target = tlx.default_target()  # doctest: +SKIP
    >>> tvm.compile(mod, target, relax_pipeline=tlx.relax_pipeline(target))  # doctest: +SKIP
    """
    resolved = resolve(target)
    scheduled = DefaultSchedule() if schedule is None else schedule
    if not isinstance(scheduled, tvm.transform.Pass):
        raise ScheduleError(f"schedule is a pass such as DefaultSchedule(), not {schedule!r}.")
    return RelaxPipeline(resolved, scheduled)


@takes_module
@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.RelaxPipeline")
class RelaxPipeline:
    """The passes of :func:`relax_pipeline`; ``planned`` follow the plan of memory.

    ``pack`` brings weights to 4 or 8 bits, if any pass does.
    """

    def __init__(
        self,
        target: Target,
        schedule: tvm.transform.Pass,
        planned: Sequence[tvm.transform.Pass] = (),
        pack: PackWeights | None = None,
    ) -> None:
        self.target, self.schedule, self.planned, self.pack = target, schedule, planned, pack

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run all passes."""
        final = stock.finalize_passes(self.target)
        names = [one.info.name for one in final]
        at = names.index("KillAfterLastUse")
        passes = [
            *lowered_passes(self.target, allowed(mod, self.target), self.pack),
            self.schedule,
            InSequence(),
            *stock.dataflow_lower_passes(self.target),
            *final[:at],
            *self.planned,
            *final[at:],
        ]
        with side_by_side(_size(mod)), self.target:
            return tvm.transform.Sequential(passes)(mod)


def _size(mod: tvm.IRModule) -> int:
    """Operators of a module, or functions that are made of them."""
    bodies = [one.body for one in mod.functions.values() if isinstance(one, relax.Function)]
    blocks = [block for body in bodies for block in getattr(body, "blocks", ())]
    return sum(len(block.bindings) for block in blocks)


def lower_relax(mod: tvm.IRModule, target: str | Target | None = None) -> tvm.IRModule:
    """Lower a Relax module to the functions that :func:`relax_pipeline` schedules, to tune them.

    :func:`tvm_layout_ext.tune_module` lowers a module by itself as TVM's own pipeline does. Its
    records are of other functions then, and :class:`DefaultSchedule` finds few of them.

    Parameters
    ----------
    mod : tvm.IRModule
        Of Relax functions.
    target : str or tvm.target.Target, optional
        By default :func:`tvm_layout_ext.default_target`.

    Examples
    --------
    >>> tlx.tune_module(tlx.lower_relax(mod), log="logs")  # doctest: +SKIP
    >>> pipeline = tlx.relax_pipeline(target, tlx.DefaultSchedule("logs"))  # doctest: +SKIP
    """
    resolved, mod = resolve(target), as_module(mod)
    with resolved:
        return tvm.transform.Sequential(lowered_passes(resolved, allowed(mod, resolved)))(mod)


def lowered_passes(
    target: Target, tf32: Iterable[str] = (), pack: PackWeights | None = None
) -> list[tvm.transform.Pass]:
    """What makes fused functions of operators, before any schedule.

    ``tf32`` are the kinds of products of ``float32`` that may be rounded (:mod:`.tf32`), and
    ``pack`` brings weights to 4 or 8 bits.
    """
    return [
        # Before TVM puts its kernels of scans into masks.
        SinksApart(),
        ComposeAttention(),
        MasksAsBands(),
        *stock.library_dispatch_passes(target),
        TransposedConvolutions(),
        RowsAsImages(),
        SpaceToDepth(tf32),
        PadChannels(tf32),
        WideGroups(tf32),
        ChannelsLast(tf32),
        DropBroadcasts(),
        HoistReshapes(),
        SlicesFirst(),
        SplitsAsSlices(),
        SinkPermutations(),
        BatchNormsAsScales(),
        SumsInSteps(),
        WidenSums(),
        MergeProducts(),
        *([] if pack is None else [pack]),
        PermutationsAsViews(),
        PixelsAsRows(),
        GatherAttention(),
        WriteOutAttention(),
        WeightsAsRows(),
        GatedProducts(),
        RoundOperands(tf32),
        ProductsInPlace(tf32),
        _FuseTransposes(tf32),
        # A number that a variable is bound to would be an input of a chain of rows.
        FoldConstants(),
        GatherRows(),
        legalize_ops(tf32),
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.FoldConstant(),
        FuseWeights(),
        # LegalizeOps leaves elements of tuples between operands, which FuseOps would lose.
        relax.transform.CanonicalizeBindings(),
        FusionPatterns(),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        FuseWrites(),
        *([] if pack is None else [pack.as_constants]),
        # Before schedules, or TVM no longer sees which functions only reshape.
        _ReshapesAsViews(),
        relax.transform.DeadCodeElimination(),
        PagedCache(),
    ]


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.ReshapesAsViews")
class _ReshapesAsViews:
    """RewriteDataflowReshape, of which TVM 0.27 ends over some reshapes of symbolic sizes."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        try:
            return relax.transform.RewriteDataflowReshape()(mod)
        except tvm.error.InternalError as error:
            _log.warning("No reshape becomes a view, so that each copies; TVM: %s", reason(error))
            return mod


@tvm.transform.module_pass(opt_level=0, name="tvm_layout_ext.FuseTransposes")
class _FuseTransposes:
    def __init__(self, tf32: Iterable[str]) -> None:
        self.is_rounded = MATMUL in tf32

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        fused, known = fuse_transposes(mod), {gv.name_hint for gv in mod.functions}
        for gv, func in fused.functions_items() if self.is_rounded else ():
            if isinstance(func, tirx.PrimFunc) and gv.name_hint not in known:
                fused.update_func(gv, rounded(func))
        return fused
