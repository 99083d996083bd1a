"""``sch.cluster``: launch neighbouring blocks together, on one group of multiprocessors."""

from __future__ import annotations

from typing import Any

from ...checks import whole, whole_number
from ...errors import ScheduleError
from ...gpu.hardware import CLUSTER_BLOCKS
from ...ir.annotations import ADD_UP, CLUSTER, MULTICAST, WARPGROUP
from ...ir.queries import blocks_in
from ..handles import find_loop


def cluster(sch: Any, loop: Any, size: int, multicast: bool = False) -> None:
    """Launch blocks as clusters of ``size`` neighbours along a grid axis (``sm_90`` and later).

    Called ``num_ctas`` in Triton, ``ClusterShape`` in CUTLASS, and ``__cluster_dims__`` in CUDA.
    Blocks of a cluster start together on one GPC, so neighbours that read the same tile find it in
    caches near by. With ``multicast`` each copies a part of the tile that they share into the
    shared memory of all. What a kernel computes stays the same.

    ::

        for b in T.thread_binding(64, "blockIdx.x"):   # layout_ext.cluster.x = 2
            ...

        dim3 grid(64), cluster(2);                     // blocks 0 and 1, 2 and 3, ... together

    Parameters
    ----------
    loop : LoopRV
        A loop that is bound to ``blockIdx.x``, ``blockIdx.y`` or ``blockIdx.z``. Clusters of
        several dims take a call for each. Or the steps along K of a product by ``wgmma``: each
        block of a cluster takes a part of them, and they add up in their shared memory.
    size : int
        Neighbours of a cluster along it; it divides the loop's extent, and is 8 at most, over all
        dims, which all GPUs with clusters have. 1 leaves the launch as it is.
    multicast : bool
        Share the operand that does not move along the loop; only products of
        ``use_tensor_core(block, "wgmma")`` can, whose tiles beyond the edge are computed too.
    """
    count = whole_number("size of cluster", size, 1, ScheduleError, CLUSTER_BLOCKS)
    nest = find_loop(sch, loop, "cluster")
    if nest.thread_binding is None and any(WARPGROUP in one.annotations for one in blocks_in(nest)):
        _of_steps(sch, loop, nest, count)
        return
    tag = None if nest.thread_binding is None else str(nest.thread_binding.thread_tag)
    if tag is None or not tag.startswith("blockIdx."):
        raise ScheduleError(
            f"cluster needs a loop that is bound to blockIdx; {nest.loop_var.name} is "
            f"{'not bound' if tag is None else f'bound to {tag}'}."
        )
    blocks = whole(nest.extent)
    if blocks is None or (blocks % count and not multicast):
        raise ScheduleError(
            f"Loop {nest.loop_var.name} has {nest.extent} blocks along {tag}, which is no multiple "
            f"of a cluster of {count}."
        )
    if count > 1:
        sch.annotate(loop, MULTICAST if multicast else f"{CLUSTER}{tag.rpartition('.')[2]}", count)


def _of_steps(sch: Any, loop: Any, nest: Any, count: int) -> None:
    """Let the blocks of a cluster share the steps along K."""
    steps = whole(nest.extent)
    if steps is None or count > steps:
        raise ScheduleError(
            f"Loop {nest.loop_var.name} has {nest.extent} steps, too few for a cluster of {count}."
        )
    if count > 1:
        sch.annotate(loop, ADD_UP, count)
