"""Make the primitives methods of ``tvm.s_tir.Schedule``, and take them away again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import s_tir

from ..signatures import typed
from .composed.cooperative_copy import cooperative_copy
from .composed.gemm import gemm
from .primitives.auto_coalesce import auto_coalesce
from .primitives.cluster import cluster
from .primitives.distribute_epilogue import distribute_epilogue
from .primitives.double_buffer import double_buffer
from .primitives.eviction_policy import eviction_policy
from .primitives.fuse_attention import fuse_attention
from .primitives.fuse_rows import fuse_rows
from .primitives.persistent import persistent
from .primitives.pipeline import pipeline
from .primitives.prefetch import prefetch
from .primitives.rasterize import rasterize
from .primitives.set_fragment_layout import set_fragment_layout
from .primitives.specialize_warps import specialize_warps
from .primitives.split_k import split_k
from .primitives.store_matrix import store_matrix
from .primitives.swizzle import swizzle
from .primitives.use_tensor_core import use_tensor_core

#: Every primitive of this package, by the method name that it gets.
PRIMITIVES: dict[str, Callable[..., Any]] = {
    "auto_coalesce": auto_coalesce,
    "cluster": cluster,
    "cooperative_copy": cooperative_copy,
    "distribute_epilogue": distribute_epilogue,
    "double_buffer": double_buffer,
    "eviction_policy": eviction_policy,
    "fuse_attention": fuse_attention,
    "fuse_rows": fuse_rows,
    "gemm": gemm,
    "persistent": persistent,
    "pipeline": pipeline,
    "prefetch": prefetch,
    "rasterize": rasterize,
    "set_fragment_layout": set_fragment_layout,
    "specialize_warps": specialize_warps,
    "split_k": split_k,
    #: The name of ``distribute_epilogue`` until the next release.
    "spread_sums": distribute_epilogue,
    "store_matrix": store_matrix,
    "swizzle": swizzle,
    "use_tensor_core": use_tensor_core,
}
PRIMITIVES = {name: typed(primitive, bool) for name, primitive in PRIMITIVES.items()}


def install() -> None:
    """Set every primitive as a method of ``tvm.s_tir.Schedule``; a second call changes nothing."""
    for name, primitive in PRIMITIVES.items():
        setattr(s_tir.Schedule, name, primitive)


def uninstall() -> None:
    """Remove the methods that :func:`install` set."""
    for name, primitive in PRIMITIVES.items():
        if getattr(s_tir.Schedule, name, None) is primitive:
            delattr(s_tir.Schedule, name)
