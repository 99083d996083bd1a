"""A schedule for any function: products go to tensor cores, everything else is coalesced.

Blocks that only compute an element from elements are inlined into their readers first. Then each
product of a type that tensor cores take is scheduled by :func:`.gemm.multiply`, one of float32 by
:func:`.matmul.multiply`, with what is computed from it element by element, and ``auto_coalesce``
maps each block that is left, reductions included, to a kernel of its own. Where elements of rows
are computed from the rows' sums, as in a softmax, ``fuse_rows`` makes one kernel of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_layout_ext import decisions
from tvm_layout_ext.analysis.contraction import Contraction, read_contraction
from tvm_layout_ext.errors import LayoutExtError, ScheduleError
from tvm_layout_ext.gpu.hardware import Architecture
from tvm_layout_ext.schedules import _gemm_hopper, _rows, gemm, gemm_gated, matmul
from tvm_layout_ext.schedules._gemm_types import check_instruction
from tvm_layout_ext.text import lines_of
from tvm_layout_ext.tune.measure.reference.reference import Reference, buffers_of, count_flops, draw
from tvm_layout_ext.tune.space.functions import digest_of
from tvm_layout_ext.tune.space.knobs import Config, Knob, Refusal, knob
from tvm_layout_ext.tune.space.off_tensor_cores import off_tensor_cores
from tvm_layout_ext.tune.space.operator import Operator, Shape

__all__ = ["COALESCE_KNOBS", "inline", "operator_of", "unbound"]

COALESCE_KNOBS = (
    knob("threads", (0, 64, 128, 256, 512, 1024), default=0),
    knob("vector_bytes", (2, 4, 8, 16), default=16),
    knob("stage", ("auto", "none")),
)
#: A user's schedule: changes the ``s_tir.Schedule`` it is given, or returns another one.
ScheduleFn = Callable[[s_tir.Schedule, Config], Any]
Check = Callable[[Config, Architecture], Refusal | None]


def operator_of(
    func: Any,
    schedule: ScheduleFn | None = None,
    knobs: Sequence[Knob] = (),
    *,
    check: Check | None = None,
    name: str | None = None,
) -> Operator:
    """Make an operator of one function, for the tuner.

    Its shape is fixed, so it has no dimensions: its workload's shape is ``()``. Its reference is
    the unscheduled function, run on the CPU in float64.

    Parameters
    ----------
    func : PrimFunc
        Without any schedule; buffers of constant shape, the last one its only output.
    schedule : callable, optional
        ``schedule(sch, config)`` for a schedule of your own; by default one that fits its blocks.
    knobs : sequence of Knob
        What your schedule leaves open.
    check : callable, optional
        ``check(config, architecture)`` gives the :class:`Refusal` of an illegal configuration of
        your schedule, or None; what it lets through is held against the GPU's limits once it is
        scheduled.
    name : str, optional
        By default its last block's; a digest of the function is added to it.

    Raises
    ------
    ScheduleError
        If the function has another form, or its schedule comes without knobs.

    Examples
    --------
    >>> operator_of(func, lambda sch, c: sch.auto_coalesce("B", num_threads=c["threads"]),
    ...             [knob("threads", (128, 256))])  # doctest: +SKIP
    """
    if not isinstance(knobs, list | tuple):
        raise ScheduleError(f"knobs are a list made by tlx.knob(name, values), not {knobs!r}.")
    if schedule is not None and not knobs:
        raise ScheduleError("A schedule of your own needs knobs to tune: knobs=[knob(...), ...].")
    if schedule is None and (knobs or check is not None):
        raise ScheduleError("Knobs and check belong to a schedule; give it, too.")
    _check_own(schedule, knobs)
    func = _plain(func)
    buffers = buffers_of(func)
    if schedule is not None:
        plan = _Plan(tuple(knobs), schedule, check or _all_legal)
    else:
        plan = _fitting(func)
    reference = Reference(func)

    def start(config: Config) -> s_tir.Schedule:
        sch = s_tir.Schedule(tvm.IRModule({"main": func}))
        made = plan.apply(sch, config)
        # What a primitive decided is no other schedule.
        return made if isinstance(made, s_tir.Schedule) else sch

    return Operator(
        name=f"{name or _last_block(func)}-{digest_of(func)}",
        dims=(),
        parallel=(),
        dtypes=(str(buffers[-1].dtype),),
        knobs=tuple(plan.knobs),
        compute=lambda shape, dtype: buffers,
        schedule=lambda tensors, config: start(config),
        check=lambda shape, dtype, config, architecture: plan.check(config, architecture),
        inputs=lambda shape, dtype, rng: draw(func, rng),
        reference=reference,
        flops=lambda shape: count_flops(func),
        tolerance=lambda shape, dtype: reference.tolerance(),
        prune=plan.prune,
        fit=plan.fit,
        beside=plan.beside,
        function=lambda shape, dtype: func,
        judged_late=schedule is not None or plan.judged_late,
        off_tensor_cores=plan.off_tensor_cores,
    )


def _check_own(schedule: Any, knobs: Sequence[Any]) -> None:
    """Raise ScheduleError unless a schedule can be called, and its knobs are told apart."""
    if schedule is not None and not callable(schedule):
        raise ScheduleError(f"A schedule is a function of (sch, config), not {schedule!r}.")
    for one in knobs:
        if not isinstance(one, Knob):
            raise ScheduleError(f"{one!r} is no knob; make one by knob(name, values).")
    names = [one.name for one in knobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ScheduleError(f"Two knobs are called {', '.join(twice)}; names must differ.")


@dataclass(frozen=True)
class _Plan:
    """How a function is scheduled."""

    knobs: Sequence[Knob]
    apply: ScheduleFn
    check: Check
    prune: Callable[[Shape, str, Config, Architecture], Refusal | None] | None = None
    fit: Callable[[Shape, str, Config, Architecture], Config] | None = None
    beside: Callable[[Shape, str], Config] | None = None
    off_tensor_cores: dict[str, str] = field(default_factory=dict)
    judged_late: bool = False


def _plain(func: Any) -> tirx.PrimFunc:
    """Name a function as TVM's tuner does, or say why it is none to tune."""
    if isinstance(func, tvm.IRModule):
        functions = [one for _, one in func.functions_items()]
        if len(functions) != 1:
            raise ScheduleError(f"A module of one function is wanted, not of {len(functions)}.")
        (func,) = functions
    if not isinstance(func, tirx.PrimFunc):
        raise ScheduleError(f"Cannot tune a {type(func).__name__}; a PrimFunc is wanted.")
    if func.attrs.get("tirx.is_scheduled", 0):
        raise ScheduleError("The function is scheduled already; tune it as it was before.")
    return func.with_attr("global_symbol", "main").with_attr("tirx.noalias", True)


def _last_block(func: tirx.PrimFunc) -> str:
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return str(sch.get(blocks[-1]).name_hint)


def _fitting(func: tirx.PrimFunc) -> _Plan:
    """Choose by what the blocks are; products that nothing multiplies by tiles are coalesced."""
    if gated := _gated(func):
        return gated
    refused = off_tensor_cores(func)
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    found = inline(sch)
    after = {name: _gemm_hopper.work_after(sch, name) for name in found}
    products = {name: product for name, product in found.items() if name not in refused}
    for name in list(products):
        if why := _problem(func, _products(func, {name: products[name]}, after)):
            refused[name] = why
            del products[name]
    if len(products) > 1 and (why := _problem(func, _products(func, products, after))):
        refused |= dict.fromkeys(products, why)
        products = {}
    for name, why in refused.items():
        decisions.note("operator_of", name, why, refused=True)
    in_full = {name: product for name, product in found.items() if _is_in_full(product)}
    if products:
        plan = _products(func, products, after)
    elif in_full and not _problem(func, plan := _on_threads(in_full)):
        pass
    elif _rows.is_chain(func):
        plan = _Plan(_rows.KNOBS, _rows.fuse_all, _rows.check, judged_late=True)
    else:
        plan = _Plan(COALESCE_KNOBS, _coalesce, _all_legal)
    return replace(plan, off_tensor_cores=refused)


def _gated(func: tirx.PrimFunc) -> _Plan | None:
    """Products that meet in one value, as those of a gated MLP; None where none do."""
    sch = s_tir.Schedule(tvm.IRModule({"main": func}))
    products = inline(sch)
    met = gemm_gated.meeting(sch, products)
    if met is None:
        return None
    name, after = met
    sizes, operand = products[name].sizes, products[name].operand

    def apply(fresh: s_tir.Schedule, config: Config) -> None:
        inline(fresh)
        gemm_gated.multiply(fresh, name, after, config)

    def check(config: Config, architecture: Architecture) -> Refusal | None:
        return gemm_gated.check(sizes, operand, config, architecture)

    def fit(_: Shape, __: str, config: Config, architecture: Architecture) -> Config:
        return gemm_gated.fit(sizes, operand, config, architecture)

    return _Plan(gemm_gated.KNOBS, apply, check, fit=fit)


def _is_in_full(product: Contraction) -> bool:
    """Whether threads multiply matrices of float32; a single row or column makes a sum."""
    return (product.operand, product.sums) == ("float32", "float32") and min(product.sizes[:2]) > 1


def _on_threads(products: dict[str, Contraction]) -> _Plan:
    (one, *more) = products.values()
    batch = math.prod(one.extents[i] for i in one.batch)

    def apply(fresh: s_tir.Schedule, config: Config) -> None:
        inline(fresh)
        for name in products:
            matmul.multiply(fresh, name, config)
        for name in sorted(unbound(fresh)):
            fresh.auto_coalesce(name)

    def check(config: Config, architecture: Architecture) -> Refusal | None:
        found = (matmul.check(p.sizes, p.operand, config, architecture) for p in products.values())
        return next((refusal for refusal in found if refusal is not None), None)

    def fit(_: Shape, __: str, ___: Config, ____: Architecture) -> Config:
        return {} if more else matmul.fitting(one.sizes, batch, one.b.k_major)

    return _Plan(matmul.KNOBS, apply, check, fit=fit)


def _problem(func: tirx.PrimFunc, plan: _Plan) -> str:
    """Why products cannot be scheduled so, or nothing."""
    try:
        plan.apply(
            s_tir.Schedule(tvm.IRModule({"main": func})),
            {one.name: one.default for one in plan.knobs},
        )
    except LayoutExtError as error:
        return str(error)
    except RuntimeError as error:
        return f"TVM refuses its schedule: {lines_of(error)[-1]}"
    return ""


def _all_legal(_config: Config, _architecture: Architecture) -> Refusal | None:
    """Nobody knows of a rule; what cannot be built is a failed trial."""
    return None


def inline(sch: s_tir.Schedule) -> dict[str, Contraction]:
    """Inline blocks that compute an element from elements; return the products, by block name.

    What a product reads is left alone, for its operands must lie in memory.
    """
    products = {}
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        try:
            product = read_contraction(sch.get(block))
        except ScheduleError:
            continue
        products[str(sch.get(block).name_hint)] = product
    read = {one.buffer.name for p in products.values() for one in (p.a, p.b)}
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        node = sch.get(block)
        summed = any(i.iter_type != tirx.IterVar.DataPar for i in node.iter_vars)
        if summed or any(region.source.name in read for region in node.writes):
            continue
        if sch.get_consumers(block):
            try:
                sch.compute_inline(block)
            except RuntimeError:
                # It is more than one statement, or something that TensorIR does not inline.
                continue
    return products


def _products(
    func: tirx.PrimFunc, products: dict[str, Contraction], after: dict[str, float]
) -> _Plan:
    def apply(fresh: s_tir.Schedule, config: Config) -> None:
        inline(fresh)
        for name in products:
            gemm.multiply(fresh, name, config)
        for name in sorted(unbound(fresh)):
            fresh.auto_coalesce(name)

    def check(config: Config, architecture: Architecture) -> Refusal | None:
        for product in products.values():
            refusal = check_product(product, config, architecture)
            if refusal is not None:
                return refusal
        return None

    result = buffers_of(func)[-1]
    facts = [
        (p.sizes, p.operand, p.b.k_major, _gemm_hopper.may_swap(p, result))
        for p in products.values()
    ]

    def prune(_: Shape, __: str, config: Config, architecture: Architecture) -> Refusal | None:
        for sizes, operand, by_k, may_swap in facts:
            if refusal := gemm.prune(sizes, operand, config, architecture, by_k, may_swap):
                return refusal
        return None

    def beside(_: Shape, __: str) -> Config:
        sizes, operand = facts[0][:2]
        return gemm.beside(sizes, operand)

    def fit(_: Shape, __: str, config: Config, architecture: Architecture) -> Config:
        # A batch fills the machine as more rows do.
        (one, *more) = products.values()
        name = next(iter(products))
        batch = math.prod(one.extents[i] for i in one.batch)
        m, n, k = one.sizes
        if more:
            return {}
        shape = batch * m, n, k
        return gemm.fit(
            shape,
            one.operand,
            config,
            architecture,
            b_transposed=one.b.k_major,
            a_transposed=not one.a.k_major,
            is_plain=_is_plain(one),
            after=after[name],
            may_swap=_gemm_hopper.may_swap(one, result),
        )

    return _Plan(gemm.KNOBS, apply, check, prune, fit, beside)


def check_product(
    product: Contraction, config: Config, architecture: Architecture
) -> Refusal | None:
    """Why a configuration is not legal for a product, or None."""
    if config.get("wgmma", gemm.NONE) != gemm.NONE and not _is_plain(product):
        return Refusal("wgmma of matrices", "Warpgroups multiply matrices, without a batch, here.")
    types, tile_k = (product.operand, product.sums), int(config["tile_k"])
    refused = check_instruction("auto", *types, tile_k, architecture, tf32=product.tf32)
    return refused or gemm.check(
        product.sizes,
        product.operand,
        config,
        architecture,
        b_transposed=product.b.k_major,
        a_transposed=not product.a.k_major,
    )


def _is_plain(product: Contraction) -> bool:
    """Whether it multiplies two matrices into one, each index an iterator, with wide sums."""
    groups = (product.rows, product.columns, product.depth)
    wide = product.sums in ("float32", "int32")
    return not product.batch and all(len(one) == 1 for one in groups) and wide


def _root_blocks(sch: s_tir.Schedule) -> set[str]:
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    return {str(sch.get(block).name_hint) for block in blocks}


def unbound(sch: s_tir.Schedule) -> set[str]:
    """Blocks that are in no kernel yet."""
    return {
        str(sch.get(block).name_hint)
        for block in sch.get_child_blocks(sch.get_sblock("root"))
        if all(sch.get(loop).thread_binding is None for loop in sch.get_loops(block))
    }


def _coalesce(sch: s_tir.Schedule, config: Config) -> None:
    """Map every block to a kernel of its own."""
    inline(sch)
    for name in sorted(_root_blocks(sch)):
        sch.auto_coalesce(
            name,
            num_threads=int(config["threads"]) or None,
            vector_bytes=int(config["vector_bytes"]),
            stage=str(config["stage"]),
        )
