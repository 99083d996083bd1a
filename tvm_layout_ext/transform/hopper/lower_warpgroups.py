"""Lower the kernels that ``sch.use_tensor_core(block, "wgmma")`` and ``specialize_warps`` made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from ... import decisions
from ...errors import ScheduleError
from ...gpu.hardware import Architecture, architecture
from ...gpu.warpgroups import WARPGROUP_ROWS, WARPGROUP_THREADS
from ...intrin import asynchronous
from ...ir import ops
from ...ir.annotations import ADD_UP, MULTICAST, PERSISTENT, PRODUCERS, WARPGROUP
from ...ir.queries import variables
from ...ir.rebuild import block_with, realize_with, sequence
from ...ir.walk import statements_of
from ...target import target_arch
from ..base import asks_for, function_pass
from ..tensor_core.lower_tensor_core import narrowed
from .add_up import add_up
from .epilogue import finish, result_view
from .places import divided_as_places
from .plan import Plan, make_plan, recorded
from .read_kernel import Kernel, multiplies, read_kernel
from .roles import Parts, Tile, boxes, consume, end, make_parts, produce, start
from .scaled import consume_scaled

_NAME = "LowerWarpgroups"


def _written(nest: Any, gpu: Architecture, resized: Callable[[Kernel], Kernel]) -> Any:
    """The kernel of a nest."""
    plan = make_plan(resized(read_kernel(nest)), gpu)
    decisions.note(_NAME, "the kernel", plan.told(), record=recorded(plan))
    maps, host = _tensor_maps(plan)
    parts = make_parts(plan, maps)
    body = [*map(tirx.AllocBuffer, (parts.arena, parts.full, parts.empty)), start(parts)]
    results = result_view(parts) if plan.stores_by_box else None
    write = consume if plan.kernel.scaled is None else consume_scaled
    consumer = write(parts, partial(_finish, parts, results))
    if results is not None:
        leads = (parts.thread % WARPGROUP_THREADS).equal(0)
        done = tirx.IfThenElse(leads, asynchronous.wait_stores(0, read=True), None)
        view = tirx.DeclBuffer(results, data=parts.arena.data)
        consumer = sequence([view, consumer, done])
    is_producer = parts.thread >= plan.kernel.consumers * WARPGROUP_THREADS
    body += [tirx.IfThenElse(is_producer, produce(parts), consumer), *end(parts)]
    sizes = plan.grid, plan.threads
    kernel = launched(
        sequence(body), parts.block, parts.thread, sizes, plan.blocks * plan.kernel.slices
    )
    return sequence([*host, divided_as_places(kernel) if plan.kernel.meant else kernel])


def _finish(parts: Parts, results: Any, tile: Tile, sums: Any) -> Any:
    """Write a tile of results, after slices of K are added up."""
    done = partial(finish, parts, results, tile, sums)
    return done() if parts.plan.kernel.slices == 1 else add_up(parts, sums, done)


def _tensor_maps(plan: Plan) -> tuple[dict[str, Any], list[Any]]:
    """The tensor maps of A, B and C by name, and what fills them on the host."""
    kernel, box = plan.kernel, boxes(plan)
    sides = {
        name: (side, source)
        for side, one in (("a", kernel.a), ("b", kernel.b))
        for name, source in zip(plan.maps(side), (one.source, *one.others), strict=False)
    }
    if plan.stores_by_box:
        sides["c"] = ("c", kernel.result.target)
        rows = (WARPGROUP_ROWS,) if kernel.windows is None else kernel.windows.box
        box["c"] = kernel.result.target.box((*rows, plan.chunk_columns))
    row_bytes = {"a": kernel.row_bytes, "b": kernel.row_bytes, "c": plan.chunk_row_bytes}
    maps, host = {}, []
    for name, (side, one) in sides.items():
        maps[name], statements = asynchronous.tensor_map(
            one.buffer, one.extents, box[side], one.shape, one.steps, row_bytes[side]
        )
        host += statements
    return maps, host


def launched(body: Any, block: Any, thread: Any, sizes: tuple[Any, int], cluster: int = 1) -> Any:
    """Launch so many blocks of so many threads, one block at a time on a multiprocessor."""
    rank = tirx.Var("rank", "int32")
    body = tirx.AttrStmt(block, ops.LAUNCH_BOUNDS_MIN_BLOCKS_PER_SM, tirx.IntImm("int32", 1), body)
    axes = [(thread, "threadIdx.x", sizes[1]), (block, "blockIdx.x", sizes[0])]
    axes[:0] = [(rank, "clusterCtaIdx.x", cluster)] if cluster > 1 else []
    for var, tag, extent in axes:
        size = tirx.IntImm("int32", extent) if isinstance(extent, int) else extent
        axis = tirx.IterVar(tvm.ir.Range(0, size), var, tirx.IterVar.ThreadIndex, tag)
        body = tirx.AttrStmt(axis, "thread_extent", size, body)
    return body


def _check_others(stmt: Any) -> None:
    """Refuse requests to kernels that no warpgroups compute, which would be forgotten."""

    def look(loop: Any) -> None:
        for key, call in (
            (PRODUCERS, "specialize_warps"),
            (PERSISTENT, "persistent"),
            (MULTICAST, "cluster(multicast=True)"),
            (ADD_UP, "cluster"),
        ):
            if key in loop.annotations:
                raise ScheduleError(
                    f"Loop {loop.loop_var.name} has {call}, but nothing inside it is multiplied by "
                    'wgmma; only kernels of use_tensor_core(block, "wgmma") can be so.'
                )

    tvm_ffi.structural_walk(stmt, [(tirx.For, look)])


@function_pass()
def LowerWarpgroups(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that lowers kernels of warpgroups: TMA, mbarriers and ``wgmma``.

    Block annotation ``layout_ext.warpgroup`` names the instruction of a tile::

        # before                              # after
        for m, n in grid(...):                if producer:
            for wg in warpgroups:                 for k: wait empty; TMA A, B -> full
                for k in ...:                 else:
                    A_shared = A                  for k: wait full; wgmma; arrive empty
                    B_shared = B                  sums -> shared memory -> TMA -> C
                    C_warp += A_shared * ...
            C = cast(C_warp)

    Raises
    ------
    ScheduleError
        If the nest has another form, or the GPU, TMA, registers or shared memory do not allow it.
    """
    if not any(asks_for(func, key) for key in (WARPGROUP, PRODUCERS, PERSISTENT, MULTICAST)):
        return func
    return lowered(func, architecture(target_arch(func)))


def lowered(
    func: tirx.PrimFunc, gpu: Architecture, resized: Callable[[Kernel], Kernel] = lambda one: one
) -> tirx.PrimFunc:
    """Lower the kernels of a function, each of the sizes that it is given by ``resized``."""
    func = narrowed(tvm.IRModule({"main": func}))["main"]
    root = func.body.block
    parts = list(statements_of(root.body))
    for one in parts:
        if not multiplies(one):
            _check_others(one)
    body = sequence([_written(one, gpu, resized) if multiplies(one) else one for one in parts])
    used = {var.__chandle__() for var in variables(body)}
    kept = [one for one in root.alloc_buffers if one.__chandle__() in used]
    block = block_with(root, body=body, alloc_buffers=kept)
    return func.with_body(realize_with(func.body, block))
