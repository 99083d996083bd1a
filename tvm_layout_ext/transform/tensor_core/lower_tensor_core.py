"""Put tensor-core instructions in the place of the loop nests that stand for them."""

from __future__ import annotations

import math
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.tirx import IndexMap

from ... import decisions
from ...errors import ScheduleError
from ...gpu.hardware import Architecture, architecture
from ...intrin import capability_of, fragment_index, register
from ...ir.annotations import ANNOTATION_PREFIX, NOT_WARPGROUPS, SWIZZLE, TENSOR_CORE
from ...ir.block_bindings import iter_values
from ...ir.queries import blocks_in, thread_tag, uses
from ...ir.rebuild import block_with
from ...target import target_arch
from ..base import function_pass

#: Where ``storage_align`` keeps buffer, axis, factor and offset.
_PADDING = "buffer_dim_align"
_NAME = "LowerTensorCore"
_MOST_ELEMENTS = 2**31 - 1


def _in_order(tile: Any) -> Any:
    """Write a tile's sum as its instruction does: ``C + A * B``, A the factor with the rows."""
    if len(tile.annotations.get(TENSOR_CORE, ())) < 2:
        return tile
    found: list[Any] = []

    def reorder(node: Any) -> Any:
        value = getattr(node.body, "value", None)
        if not isinstance(value, tirx.Add):
            return node  # Changed since; refused where it is compared.
        rest, product = (value.b, value.a) if isinstance(value.a, tirx.Mul) else (value.a, value.b)
        if not isinstance(product, tirx.Mul):
            return node
        rows = tirx.analysis.undefined_vars(node.body.indices[-2])
        factors = [product.a, product.b]
        if any(uses(factors[1], var) for var in rows):
            factors.reverse()
        found.extend(_source(one) for one in (rest, *factors))
        ordered = rest + factors[0] * factors[1]
        body = tirx.BufferStore(node.body.buffer, ordered, node.body.indices)
        return block_with(node, body=body, reads=_sorted(node.reads, found))

    body = tvm_ffi.structural_map(tile.body, [(SBlock, reorder)], order="post")
    return block_with(tile, body=body, reads=_sorted(tile.reads, found))


def _source(factor: Any) -> Any:
    return (factor.value if isinstance(factor, tirx.Cast) else factor).source


def _sorted(regions: Any, buffers: list[Any]) -> list[Any]:
    def place(region: Any) -> int:
        here = (i for i, one in enumerate(buffers) if one.same_as(region.source))
        return next(here, len(buffers))

    return sorted(regions, key=place)


def _annotated(sch: Any, block: Any) -> list[Any]:
    found = []
    for child in sch.get_child_blocks(block):
        if TENSOR_CORE in sch.get(child).annotations:
            found.append(child)
        else:
            found.extend(_annotated(sch, child))
    return found


def _lower(sch: Any, block: Any, gpu: Architecture) -> None:
    node = sch.get(block)
    name = str(node.name_hint)
    intrinsic, *clears = (str(one) for one in node.annotations[TENSOR_CORE])
    _check_threads(sch, block, name)
    _check_gpu(node.annotations[TENSOR_CORE][0], name, gpu)
    sch.unannotate(block, TENSOR_CORE)
    if NOT_WARPGROUPS in node.annotations:
        decisions.note(_NAME, name, f"wgmma: {node.annotations[NOT_WARPGROUPS]}", refused=True)
        sch.unannotate(block, NOT_WARPGROUPS)
    _lift(sch, block)
    _lay_out(sch, block, intrinsic)
    if clears and node.init is not None:
        clear = sch.decompose_reduction(block, _first_summed(sch, block))
        _tensorize(sch, clear, clears[0], f"{name}, which it clears,")
    _tensorize(sch, block, intrinsic, name)
    decisions.note(_NAME, name, _told(intrinsic))


def _lift(sch: Any, block: Any) -> None:
    """Give a tile what was asked for its one statement, which the instruction replaces."""
    tile = sch.get(block)
    for inner in sch.get_child_blocks(block):
        for key, value in sch.get(inner).annotations.items():
            if key in tile.annotations:
                if key in (SWIZZLE, _PADDING) and str(tile.annotations[key]) != str(value):
                    raise ScheduleError(
                        f"Tile {tile.name_hint} has {key} {tile.annotations[key]} and its "
                        f"statement {sch.get(inner).name_hint} {value}, for the one buffer that "
                        "both write; ask for one of them."
                    )
                continue
            if key == _PADDING:
                for entry in value:
                    sch.storage_align(block, *map(int, entry))
            elif key.startswith(ANNOTATION_PREFIX):
                sch.annotate(block, key, value)


def _told(intrinsic: str) -> str:
    short = intrinsic.removeprefix(ANNOTATION_PREFIX)
    if not short.startswith("load."):
        return short
    return f"{short}: plain loads by each lane, as ldmatrix transposes only elements of 16 bits"


def _lay_out(sch: Any, block: Any, name: str) -> None:
    """Keep the warp buffer of a block, rows and columns so far, as fragments."""
    access = "write" if ".stmatrix." not in name else "read"
    node = sch.get(block)
    regions = node.writes if access == "write" else node.reads
    dtype = str(node.iter_vars[0].var.ty.dtype)
    index_map = IndexMap.from_func(
        lambda *i: fragment_index(name, i),
        ndim=len(regions[0].source.shape),
        index_dtype=dtype,
    )
    sch.transform_layout(block, (access, 0), index_map)


def _check_threads(sch: Any, block: Any, name: str) -> None:
    for rv in sch.get_loops(block):
        loop = sch.get(rv)
        if thread_tag(loop) == "threadIdx.x":
            raise ScheduleError(
                f"Block {name} is under loop {loop.loop_var.name}, which is bound to threadIdx.x; "
                "these are the lanes of the instruction's warp, so bind warps to threadIdx.y or z."
            )


def _check_gpu(intrinsic: str, name: str, gpu: Architecture) -> None:
    """Raise ScheduleError if the program is lowered for a GPU that lacks the instruction."""
    needed = capability_of(str(intrinsic))
    if gpu.capability < needed:
        raise ScheduleError(
            f"Block {name} was scheduled for {intrinsic.removeprefix(ANNOTATION_PREFIX)}, which "
            f"needs compute capability {needed[0]}.{needed[1]}; {gpu.name} is older."
        )


def _first_summed(sch: Any, block: Any) -> Any:
    """Outermost loop over a summed iterator, before which the sums are cleared."""
    iterators = sch.get(block).iter_vars
    summed = [
        value
        for iterator, value in zip(iterators, iter_values(sch, block), strict=True)
        if iterator.iter_type == tirx.IterVar.CommReduce
    ]
    loops = sch.get_loops(block)
    for rv in loops:
        if any(uses(value, sch.get(rv).loop_var) for value in summed):
            return rv
    return loops[-1] if loops else sch.add_unit_loop(block)


def _tensorize(sch: Any, block: Any, name: str, what: str) -> None:
    """Replace a block; TVM may end the process where nest and description do not fit."""
    description = s_tir.TensorIntrin.get(register(name)).desc.body.block.body
    problem = _difference(sch.get(block).body, description)
    if problem:
        raise ScheduleError(
            f"Block {what} no longer is one tile of {name.removeprefix('layout_ext.')}: {problem}. "
            "What use_tensor_core put below it must stay as it is."
        )
    sch.tensorize(block, name)


def _difference(nest: Any, description: Any) -> str:
    """Say in what a nest differs from what it should be, or nothing."""
    while isinstance(description, tirx.For):
        if not isinstance(nest, tirx.For):
            return f"it has no loop of {description.extent}"
        if not tvm_ffi.structural_equal(nest.extent, description.extent):
            return f"its loop {nest.loop_var.name} has {nest.extent}, not {description.extent}"
        if int(nest.kind) != int(description.kind) or nest.annotations:
            return f"its loop {nest.loop_var.name} is not plain"
        nest, description = nest.body, description.body
    if not isinstance(nest, SBlockRealize) or not isinstance(nest.block.body, tirx.BufferStore):
        return "it does not hold one statement"
    for one, other in (
        (nest.block.reads, description.block.reads),
        (nest.block.writes, description.block.writes),
    ):
        there, wanted = (
            sorted(f"{r.source.dtype} in {r.source.scope()}" for r in regions)
            for regions in (one, other)
        )
        if there != wanted:
            return f"it touches {', '.join(there)}, not {', '.join(wanted)}"
    return ""


@function_pass(asks=TENSOR_CORE)
def LowerTensorCore(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that makes instructions of the tiles that ``use_tensor_core`` marked.

    Block annotation ``layout_ext.tensor_core`` names the intrinsic that does the block, and for a
    sum a second one that clears it; ``sch.use_tensor_core`` writes it. The sum is cleared before
    its outermost summed loop. Intrinsics are built and registered here, when they are needed.

    Does not handle, and refuses by name: tiles that were changed after ``use_tensor_core`` made
    them, and tiles under a loop that is bound to ``threadIdx.x``, whose values are the lanes.
    """
    # Held until the end: a schedule changes a function that nobody else holds in place, and with it
    # the blocks that narrowing left shared with the caller's.
    body = tvm_ffi.structural_map(func.body, [(SBlock, _in_order)], order="post")
    held = narrowed(tvm.IRModule({"main": func.with_body(body)}))["main"]
    sch = s_tir.Schedule(tvm.IRModule({"main": held}), debug_mask="none")
    gpu = architecture(target_arch(func))
    for block in _annotated(sch, sch.get_sblock("root")):
        _lower(sch, block, gpu)
    return sch.mod["main"]


def narrowed(mod: tvm.IRModule) -> tvm.IRModule:
    """Index of 32 bits, as intrinsics have it; TVM's pass would narrow elements of buffers, too.

    Whoever schedules symbolic sizes has what does not fit refused by the host.
    """
    buffers: list[Any] = [p for p in mod["main"].params if hasattr(p, "shape")]
    buffers += [one for block in blocks_in(mod["main"].body) for one in block.alloc_buffers]
    wide = any("int64" in str(buffer.dtype) for buffer in buffers)
    known = ([int(n) for n in one.shape if isinstance(n, tirx.IntImm)] for one in buffers)
    sizes = [math.prod(extents) for extents in known]
    if wide or max(sizes) > _MOST_ELEMENTS:
        return mod
    return tirx.transform.ForceNarrowIndexToInt32()(mod)
