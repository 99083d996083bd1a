"""Launch neighbouring blocks as thread-block clusters, on one group of multiprocessors each."""

from __future__ import annotations

from math import prod
from typing import Any

import tvm
from tvm import tirx

from ... import decisions
from ...errors import ScheduleError, TargetError
from ...gpu.hardware import CLUSTER_BLOCKS, CLUSTERS_SINCE
from ...ir.annotations import CLUSTER
from ...ir.queries import nodes_in
from ...ir.rebuild import loop_with, without_annotations
from ...target import capability
from ..base import function_pass, mapped

_NAME = "LaunchClusters"
#: TVM's thread axis of a block within its cluster; its extent is the cluster's.
_AXIS = "clusterCtaIdx."


def _sizes(loop: Any) -> dict[str, int]:
    named = ((str(key), value) for key, value in loop.annotations.items())
    return {key.removeprefix(CLUSTER): int(n) for key, n in named if key.startswith(CLUSTER)}


def _check(func: tirx.PrimFunc, asked: dict[str, int]) -> None:
    target = func.attrs["target"]
    if capability(target) < CLUSTERS_SINCE:
        major, minor = CLUSTERS_SINCE
        raise TargetError(
            f"{target.attrs['arch']} launches no clusters of blocks; they need compute capability "
            f"{major}.{minor}."
        )
    if prod(asked.values()) > CLUSTER_BLOCKS:
        sizes = ", ".join(f"{size} along {axis}" for axis, size in asked.items())
        raise ScheduleError(
            f"A cluster of {prod(asked.values())} blocks ({sizes}) is asked for; GPUs that have "
            f"clusters launch up to {CLUSTER_BLOCKS}."
        )


def _clustered(loop: Any) -> Any:
    body, keys = loop.body, []
    for axis, count in _sizes(loop).items():
        index = tirx.Var(f"clusterCtaIdx_{axis}", loop.loop_var.ty)
        extent = tirx.IntImm(str(loop.loop_var.ty.dtype), count)
        kind = tirx.IterVar.ThreadIndex
        block = tirx.IterVar(tvm.ir.Range(0, extent), index, kind, f"{_AXIS}{axis}")
        body = tirx.AttrStmt(block, "thread_extent", extent, body)
        keys.append(f"{CLUSTER}{axis}")
        decisions.note(_NAME, "grid", f"clusters of {count} blocks along blockIdx.{axis}")
    return loop_with(without_annotations(loop, *keys), body=body) if keys else loop


@function_pass(asks=CLUSTER)
def LaunchClusters(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Create the pass that launches the blocks of kernels in clusters where the schedule says so.

    A loop bound to a grid axis carries annotation ``layout_ext.cluster.x`` (``y``, ``z``)::

        for b in T.thread_binding(64, "blockIdx.x"):   # layout_ext.cluster.x = 2
            ...

        with T.launch_thread("blockIdx.x", 64):
            T.launch_thread("clusterCtaIdx.x", 2)      # cuLaunchKernelEx, cluster of 2 x 1 x 1
            ...

    Does not handle: kernels with two loops of one grid axis, which get the cluster of the last one.
    """
    asked = [_sizes(loop) for loop in nodes_in(func.body, tirx.For)]
    _check(func, {axis: size for own in asked for axis, size in own.items()})
    return mapped(func, (tirx.For, _clustered))
